//! where an agent should serve → whether somebody listens there, now or within a while.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// How a way is tried: how long once, and how long until the next time.
#[derive(Clone, Copy)]
pub(crate) struct Tries {
    pub(crate) once: Duration,
    pub(crate) pause: Duration,
}

/// Whether somebody listens.
pub(crate) async fn answers(at: SocketAddr, within: Duration) -> bool {
    matches!(timeout(within, TcpStream::connect(at)).await, Ok(Ok(_)))
}

/// Waits until somebody listens; the answer is how long nobody did, where nobody does.
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
