//! an agent's address → whether a process listens there, now or within a time limit.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// How an address is tried: the limit of one try, and the pause until the next.
#[derive(Clone, Copy)]
pub(crate) struct Tries {
    pub(crate) once: Duration,
    pub(crate) pause: Duration,
}

/// Whether a process listens.
pub(crate) async fn answers(at: SocketAddr, within: Duration) -> bool {
    matches!(timeout(within, TcpStream::connect(at)).await, Ok(Ok(_)))
}

/// Waits until a process listens; the error is the time that was waited in vain.
pub(crate) async fn await_answer(at: SocketAddr, tries: Tries, limit: Duration) -> Result<(), Duration> {
    let begun = Instant::now();
    while !answers(at, tries.once).await {
        if begun.elapsed() > limit {
            return Err(begun.elapsed());
        }
        sleep(tries.pause).await;
    }
    Ok(())
}
