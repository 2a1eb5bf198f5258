//! the disk that etcd's data is on, other machines' agents → how long a durable write and a round trip take here.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use raftsman_api::v1::{MeasureReply, RoundTrip, Target};
use tokio::task::{JoinError, spawn_blocking};

use crate::files::{self, FileError};
use crate::root::Root;

const WRITES: usize = 100;
/// About what etcd appends for a small change.
const WRITE_BYTES: usize = 2048;
const DISK_LIMIT: Duration = Duration::from_secs(3);
const TRIES: usize = 5;
const TRY_LIMIT: Duration = Duration::from_millis(800);
const NETWORK_LIMIT: Duration = Duration::from_secs(2);

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The task was cancelled.
    #[error("the measurement was interrupted")]
    Broken(#[from] JoinError),
}

/// Measures the disk, then the network, so that neither disturbs the other. Takes about 5 s at most.
pub async fn measure(root: Root, port: u16, targets: Vec<Target>) -> Result<MeasureReply, MeasureError> {
    let mut writes = spawn_blocking(move || writes(&root)).await??;
    writes.sort_unstable();
    // All at the same time, and each in a thread of its own: waiting for a thread would be measured, too.
    let asked: Vec<_> = targets.into_iter().map(|target| spawn_blocking(move || round_trip(target, port))).collect();
    let mut round_trips = Vec::with_capacity(asked.len());
    for answer in asked {
        round_trips.push(answer.await?);
    }
    Ok(MeasureReply {
        fsync_p50_us: microseconds(share(&writes, 50)),
        fsync_p99_us: microseconds(share(&writes, 99)),
        samples: u32::try_from(writes.len()).unwrap_or(u32::MAX),
        round_trips,
    })
}

/// How long each of some appends took until it was durable, beside etcd's data: on the same disk.
fn writes(root: &Root) -> Result<Vec<Duration>, FileError> {
    let path = files::beside(&root.etcd().join("measure"));
    let mut file = files::create(&path, 0o600).map_err(FileError::of("create", &path))?;
    let measured = append(&mut file).map_err(FileError::of("write", &path));
    fs::remove_file(&path).map_err(FileError::of("remove", &path))?;
    measured
}

fn append(file: &mut File) -> io::Result<Vec<Duration>> {
    let bytes = [0x5a; WRITE_BYTES];
    let begun = Instant::now();
    let mut times = Vec::with_capacity(WRITES);
    while times.len() < WRITES && begun.elapsed() < DISK_LIMIT {
        let started = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        times.push(started.elapsed());
    }
    Ok(times)
}

fn round_trip(target: Target, port: u16) -> RoundTrip {
    let Target { name, address } = target;
    match address.parse().map_err(|_| format!("`{address}` is not an address")).and_then(|ip| connects(ip, port)) {
        Ok(mut times) => {
            times.sort_unstable();
            RoundTrip { name, median_us: microseconds(share(&times, 50)), error: String::new() }
        }
        Err(error) => RoundTrip { name, median_us: 0, error },
    }
}

/// How long it took to connect, which is one round trip; at least once, or the reason why never.
fn connects(ip: IpAddr, port: u16) -> Result<Vec<Duration>, String> {
    let socket = SocketAddr::new(ip, port);
    let begun = Instant::now();
    let mut times = Vec::with_capacity(TRIES);
    let mut problem = String::new();
    for _ in 0..TRIES {
        let left = NETWORK_LIMIT.saturating_sub(begun.elapsed()).min(TRY_LIMIT);
        if left.is_zero() {
            break;
        }
        let started = Instant::now();
        match TcpStream::connect_timeout(&socket, left) {
            Ok(_) => times.push(started.elapsed()),
            Err(error) => problem = format!("{socket}: cannot connect: {error}"),
        }
    }
    if times.is_empty() { Err(problem) } else { Ok(times) }
}

/// The time that so many in a hundred do not exceed.
fn share(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// At least one: zero means not measured.
fn microseconds(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_micros).collect();
        assert_eq!((microseconds(share(&times, 50)), microseconds(share(&times, 99))), (50, 99));
        assert_eq!(share(&times[..5], 50), Duration::from_micros(3));
        assert_eq!(share(&times[..1], 99), Duration::from_micros(1));
        assert_eq!(share(&[], 50), Duration::ZERO);
    }
}
