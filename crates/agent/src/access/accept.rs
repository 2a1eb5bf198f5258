//! a listener → connections after their handshakes. Stalled connections are dropped in favour of new ones.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raftsman_api::tls::{ServerStream, ServerTls};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// In TLS the client sends first: its first bytes arrive one round trip after it has connected.
const FIRST_BYTES_LIMIT: Duration = Duration::from_secs(2);
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// The limit of pending connections: far below the 1,024 files that a process may have open by default.
const MOST_PENDING: usize = 256;

/// Connections after their handshakes, which run concurrently: a slow client delays no other, and no number of slow
/// clients blocks a new one.
pub fn accept(listener: TcpListener, tls: ServerTls) -> mpsc::Receiver<io::Result<ServerStream>> {
    let (accepted, connections) = mpsc::channel(16);
    let pending = Arc::new(Mutex::new(Pending::default()));
    tokio::spawn(async move {
        loop {
            let (tcp, from) = match listener.accept().await {
                Ok(connection) => connection,
                Err(error) => {
                    // Such as too many open files: it is transient, and must not be retried in a hot loop.
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (tls, accepted) = (tls.clone(), accepted.clone());
            let source = from.ip();
            let (number, place) = lock(&pending).begin(&pending);
            let task = tokio::spawn(async move {
                match handshake(tcp, &tls).await {
                    Ok(stream) => {
                        drop(place);
                        drop(accepted.send(Ok(stream)).await);
                    }
                    // A client that only probes the port closes the connection at once.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                    Err(error) => tracing::warn!(%from, %error, "client refused in the handshake"),
                }
            });
            if let Some(evicted) = lock(&pending).admit(number, source, task.abort_handle()) {
                tracing::warn!(from = %evicted, "too many connections without a handshake: the oldest is closed");
            }
        }
    });
    connections
}

async fn handshake(tcp: TcpStream, tls: &ServerTls) -> io::Result<ServerStream> {
    let late = |what| move |_| io::Error::new(io::ErrorKind::TimedOut, what);
    let first = timeout(FIRST_BYTES_LIMIT, tcp.peek(&mut [0; 1])).await.map_err(late("it sent nothing"))??;
    if first == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    timeout(HANDSHAKE_LIMIT, tls.accept(tcp)).await.map_err(late("the handshake took too long"))?
}

fn lock(pending: &Mutex<Pending>) -> std::sync::MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connections whose handshake is under way, by their number: the lowest is the oldest.
#[derive(Debug, Default)]
struct Pending {
    next: u64,
    waiting: BTreeMap<u64, Option<(IpAddr, AbortHandle)>>,
}

/// A slot among them; it is free again when this is dropped.
#[derive(Debug)]
struct Place {
    number: u64,
    pending: Arc<Mutex<Pending>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.pending).waiting.remove(&self.number);
    }
}

impl Pending {
    fn begin(&mut self, all: &Arc<Mutex<Self>>) -> (u64, Place) {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, None);
        (number, Place { number, pending: Arc::clone(all) })
    }

    /// Admits a connection, unless it has ended already. Above the limit, the oldest connection of the source with most
    /// of them is dropped, and its address returned: one source can block neither the others nor itself.
    fn admit(&mut self, number: u64, source: IpAddr, task: AbortHandle) -> Option<IpAddr> {
        *self.waiting.get_mut(&number)? = Some((source, task));
        if self.waiting.len() <= MOST_PENDING {
            return None;
        }
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.waiting.values().flatten().for_each(|(source, _)| *counts.entry(*source).or_default() += 1);
        let busiest = counts.into_iter().max_by_key(|(_, count)| *count)?.0;
        let oldest = self.waiting.iter().find(|(_, of)| of.as_ref().is_some_and(|(source, _)| *source == busiest));
        let oldest = *oldest?.0;
        // Removed here, its slot is free at once: the task releases it only when it is dropped.
        let (source, task) = self.waiting.remove(&oldest)??;
        task.abort();
        Some(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_of_the_busiest_source_makes_room() {
        let pending = Arc::new(Mutex::new(Pending::default()));
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut tasks = Vec::new();
        let mut add = |source: IpAddr| {
            let (number, place) = lock(&pending).begin(&pending);
            let task = tokio::spawn(async move {
                let _place = place;
                std::future::pending::<()>().await;
            });
            let evicted = lock(&pending).admit(number, source, task.abort_handle());
            tasks.push(task);
            evicted
        };
        assert_eq!(add(address(1)), None, "the only one of its source");
        for _ in 1..MOST_PENDING {
            assert_eq!(add(address(2)), None);
        }
        for _ in 0..1_000 {
            assert_eq!(add(address(2)), Some(address(2)));
        }
        assert_eq!(add(address(3)), Some(address(2)));
        // An aborted task ends when the runtime polls it next.
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
        }
        assert!(!tasks[0].is_finished() && !tasks[MOST_PENDING + 1_000].is_finished());
        assert!((1..=1_000).all(|evicted| tasks[evicted].is_finished()));
        assert_eq!(lock(&pending).waiting.len(), MOST_PENDING);
    }
}
