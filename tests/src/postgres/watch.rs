//! A cluster → every node asked each 50 ms whether it takes writes: two that do at once, and how long none does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::clients::Clients;
use super::connect::Tls;

/// How often each node is asked.
const EACH: Duration = Duration::from_millis(50);
/// A node without an answer for so long is connected to anew.
const LIMIT: Duration = Duration::from_secs(2);
/// Two answers of one node that are further apart say nothing of the time between them.
const TOGETHER: Duration = Duration::from_millis(500);

/// Every node is being asked.
pub struct Watch<'a> {
    cluster: &'a Clients,
    stop: Arc<AtomicBool>,
    nodes: Vec<(String, JoinHandle<Vec<Answer>>)>,
}

/// One answer of a node: it was true at some moment between the two.
#[derive(Debug, Clone, Copy)]
struct Answer {
    asked: Instant,
    answered: Instant,
    writable: bool,
}

/// What was seen.
#[derive(Debug)]
pub struct Seen {
    /// How many answers there were.
    pub answers: usize,
    /// Pairs of nodes that took writes at the same moment.
    pub two_primaries: Vec<(String, String)>,
    /// Nodes that took writes, in the order in which they first did.
    pub primaries: Vec<String>,
    /// The longest time in which no node said that it takes writes.
    pub longest_gap: Duration,
}

impl<'a> Watch<'a> {
    /// Asks every node from now on.
    pub fn start(cluster: &'a Clients) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let nodes = cluster
            .config_of_each()
            .into_iter()
            .map(|(name, config)| (name, cluster.runtime().spawn(ask(config, cluster.tls(), Arc::clone(&stop)))));
        let nodes = nodes.collect();
        Self { cluster, stop, nodes }
    }

    /// Asks no longer, and judges.
    pub fn finish(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.cluster.runtime().block_on(async {
            let mut nodes = Vec::new();
            for (name, answers) in self.nodes {
                nodes.push((name, answers.await.expect("a watcher")));
            }
            judge(&nodes)
        })
    }
}

async fn ask(config: tokio_postgres::Config, tls: Tls, stop: Arc<AtomicBool>) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut client: Option<Client> = None;
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let question = async {
            let connected = match client.take() {
                Some(connected) if !connected.is_closed() => connected,
                Some(_) | None => {
                    let (connected, connection) = config.connect(tls.clone()).await?;
                    tokio::spawn(connection);
                    connected
                }
            };
            let row = connected.query_one("select not pg_is_in_recovery()", &[]).await?;
            Ok::<_, tokio_postgres::Error>((connected, row.get::<_, bool>(0)))
        };
        // A node that does not answer takes no writes of this client: it is asked again.
        if let Ok(Ok((connected, writable))) = tokio::time::timeout(LIMIT, question).await {
            client = Some(connected);
            answers.push(Answer { asked, answered: Instant::now(), writable });
        }
        tokio::time::sleep(EACH.saturating_sub(asked.elapsed())).await;
    }
    answers
}

fn judge(nodes: &[(String, Vec<Answer>)]) -> Seen {
    let mut two_primaries = Vec::new();
    let mut first: Vec<(Instant, &String)> = Vec::new();
    for (name, answers) in nodes {
        first.extend(answers.iter().find(|answer| answer.writable).map(|answer| (answer.answered, name)));
        for (other, others) in nodes.iter().filter(|(other, _)| other != name) {
            let writable = others.iter().filter(|answer| answer.writable);
            if writable.clone().any(|answer| was_writable_around(answers, *answer)) {
                two_primaries.push((name.clone(), other.clone()));
            }
        }
    }
    first.sort();
    let mut moments: Vec<Instant> =
        nodes.iter().flat_map(|(_, answers)| answers).filter(|answer| answer.writable).map(|a| a.answered).collect();
    moments.sort();
    Seen {
        answers: nodes.iter().map(|(_, answers)| answers.len()).sum(),
        two_primaries,
        primaries: first.into_iter().map(|(_, name)| name.clone()).collect(),
        longest_gap: moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default(),
    }
}

/// Whether a node took writes before another was asked and still after that one had answered. Answers that overlap prove
/// nothing: each is true at some moment of its own.
fn was_writable_around(answers: &[Answer], other: Answer) -> bool {
    let after = answers.partition_point(|answer| answer.asked <= other.answered);
    let before = answers[..after].iter().rev().find(|answer| answer.answered < other.asked);
    match (before, answers.get(after)) {
        (Some(before), Some(after)) => before.writable && after.writable && after.asked - before.answered < TOGETHER,
        (None | Some(_), None) | (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(of: &[(u64, u64, bool)]) -> Vec<Answer> {
        let zero = Instant::now();
        let at = |ms: &u64| zero + Duration::from_millis(*ms);
        of.iter()
            .map(|(asked, answered, w)| Answer { asked: at(asked), answered: at(answered), writable: *w })
            .collect()
    }

    #[test]
    fn two_primaries_are_found_and_a_switchover_is_none() {
        let both = answers(&[(0, 5, true), (50, 55, true), (20, 25, true), (60, 65, false)]);
        let found = judge(&[("a".to_owned(), both[..2].to_vec()), ("b".to_owned(), both[2..].to_vec())]);
        assert_eq!(found.two_primaries, [("a".to_owned(), "b".to_owned())]);
        assert_eq!(found.primaries, ["a", "b"]);
        let one = answers(&[(0, 5, true), (50, 55, false), (20, 25, false), (40, 90, true)]);
        let found = judge(&[("a".to_owned(), one[..2].to_vec()), ("b".to_owned(), one[2..].to_vec())]);
        assert!(found.two_primaries.is_empty(), "{found:?}");
    }
}
