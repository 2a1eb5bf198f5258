//! HAProxy's configuration, log and admin socket → the addresses that it listens on, why it ended, what it says of the
//! members behind it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use raftsman_core::observed::{BalancerFacts, ServerState, StatError};
use raftsman_core::render::haproxy::{BACKEND, FALLBACK, FILE, PROGRAM, SOCKET};
use raftsman_core::spec::Name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use crate::machine::addresses;
use crate::root::Root;
use crate::status::describe;
use crate::supervisor::confine;
use crate::supervisor::process::Handle;
use crate::supervisor::program::Program;
use crate::supervisor::systemd::Owner;

/// An answer on the admin socket: HAProxy gives it out of memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// The bytes that are read of an answer: a line of `show stat` has some 500.
const MOST_BYTES: u64 = 1 << 20;
/// Reading the configuration file takes milliseconds.
const CHECK_LIMIT: Duration = Duration::from_secs(10);
/// A worker starts within some 100 ms.
const WORKER_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// The length to which HAProxy's reasons are cut.
const LONGEST_REASON: usize = 600;

/// Why HAProxy could not be asked, or did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// No process accepts connections on the socket.
    #[error("HAProxy does not answer on its admin socket {}", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process hangs.
    #[error("HAProxy did not answer on its admin socket within {} s", ANSWER_LIMIT.as_secs())]
    Silent,
    /// Its report is not one that raftsman knows.
    #[error(transparent)]
    Report(#[from] StatError),
    /// There is no such member behind it.
    #[error("HAProxy has no server `{0}`: its configuration does not have this member, or was not reloaded since")]
    NoServer(Name),
    /// New connections would have nowhere to go.
    #[error("`{0}` is not drained: no other server of HAProxy is up, and new connections would fail")]
    LastServer(Name),
    /// It refused a command.
    #[error("HAProxy refused `{command}`: {answer}")]
    Refused {
        /// What was asked.
        command: String,
        /// What it answered.
        answer: String,
    },
}

/// What an operator wants of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// It gets connections while it is healthy.
    Ready,
    /// It keeps its connections and gets no new ones.
    Drain,
}

impl Admin {
    fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Drain => "drain",
        }
    }
}

/// The directory of its admin socket, the only one that it writes to.
pub fn run_dir(root: &Root) -> PathBuf {
    let socket = root.path().join(SOCKET);
    socket.parent().map_or_else(|| root.path().to_path_buf(), Path::to_path_buf)
}

/// The addresses that its configuration listens on, without a virtual address that the machine does not have now.
pub fn listeners(config: &str) -> Vec<SocketAddr> {
    listeners_on(config, addresses::has)
}

fn listeners_on(config: &str, has: impl Fn(IpAddr) -> bool) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = config
        .lines()
        .filter_map(|line| line.trim().strip_prefix("bind "))
        .filter_map(|bind| {
            let mut words = bind.split_ascii_whitespace();
            let address: SocketAddr = words.next()?.parse().ok()?;
            // Only a virtual address is bound before the machine has it.
            (!words.any(|word| word == "transparent") || has(address.ip())).then_some(address)
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The reason in its log for its end: the first of the alerts that come last.
pub fn fatal(log: &[String]) -> Option<String> {
    let mut reason = None;
    for line in log.iter().rev() {
        match alert(line) {
            Some(text) => reason = Some(text),
            None if reason.is_some() => break,
            None => {}
        }
    }
    reason.map(str::to_owned)
}

/// An alert that is not about the members or an end that was asked for, such as `[ALERT]    (1234) : config : unknown keyword`.
fn alert(line: &str) -> Option<&str> {
    let text = line.strip_prefix("[ALERT]")?;
    let text = text.split_once(") : ").map_or(text, |(_, text)| text).trim();
    let usual = text.ends_with("has no server available!") || text.ends_with("(Terminated)");
    (!usual).then_some(text)
}

/// Whether HAProxy accepts its configuration file; otherwise its own reasons.
pub async fn check(root: &Root, user: Option<Owner>) -> Result<(), String> {
    let files = Program::Haproxy.files(root);
    let mut command = confine::command(Path::new(PROGRAM), files.dir(), user);
    // Not the whole path: this process must not be taken for the one that serves.
    command.args(["-c", "-f", FILE]);
    let output = timeout(CHECK_LIMIT, command.output()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let output = output.map_err(|error| format!("{PROGRAM} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    Err(reasons(&String::from_utf8_lossy(&said)))
}

fn reasons(said: &str) -> String {
    let summary = |text: &str| text.contains("Error(s) found in") || text.contains("Fatal errors found in");
    let found: Vec<&str> = said.lines().filter_map(alert).filter(|text| !summary(text)).collect();
    let text = if found.is_empty() { said.trim().to_owned() } else { found.join("; ") };
    text.chars().take(LONGEST_REASON).collect()
}

/// Sends a command over the admin socket; returns the answer.
async fn ask(root: &Root, command: &str) -> Result<String, AdminError> {
    let path = root.path().join(SOCKET);
    let asked = async {
        let mut stream = UnixStream::connect(&path).await?;
        stream.write_all(format!("{command}\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MOST_BYTES).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).trim().to_owned())
    };
    match timeout(ANSWER_LIMIT, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(AdminError::Unreachable { path, source }),
        Err(_) => Err(AdminError::Silent),
    }
}

/// What it says of the members behind it.
pub async fn facts(root: &Root) -> Result<BalancerFacts, AdminError> {
    Ok(BalancerFacts::parse(&ask(root, "show stat").await?)?)
}

/// Drains a member, or lets it have connections again.
pub async fn set_server(root: &Root, member: &Name, admin: Admin) -> Result<(), AdminError> {
    let facts = facts(root).await?;
    let server = facts.servers.get(member).ok_or_else(|| AdminError::NoServer(member.clone()))?;
    let drains = admin == Admin::Drain && server.state != ServerState::Draining;
    if drains && !facts.can_drain(member) {
        return Err(AdminError::LastServer(member.clone()));
    }
    set(root, member, admin).await
}

async fn set(root: &Root, member: &Name, admin: Admin) -> Result<(), AdminError> {
    for backend in [BACKEND, FALLBACK] {
        let command = format!("set server {backend}/{member} state {}", admin.word());
        let answer = ask(root, &command).await?;
        if !answer.is_empty() {
            return Err(AdminError::Refused { command, answer });
        }
    }
    Ok(())
}

/// The process that answers: not the master, but the worker that accepts connections now.
async fn worker(root: &Root) -> Result<u32, AdminError> {
    let command = "show info";
    let answer = ask(root, command).await?;
    let pid = answer.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.ok_or_else(|| AdminError::Refused { command: command.to_owned(), answer })
}

/// Waits until a worker answers, other than this one; or until HAProxy has ended.
pub async fn answers(root: &Root, master: &Handle, other_than: Option<u32>) -> Result<u32, String> {
    let begun = Instant::now();
    loop {
        let problem = match worker(root).await {
            Ok(pid) if Some(pid) != other_than => return Ok(pid),
            Ok(pid) => format!("its worker {pid} still answers"),
            Err(error) => describe(&error),
        };
        if begun.elapsed() > WORKER_LIMIT {
            return Err(format!("{problem} after {} s", WORKER_LIMIT.as_secs()));
        }
        if timeout(POLL, master.ended()).await.is_ok() {
            return Err("it has ended".to_owned());
        }
    }
}

/// The members that are drained now: a worker after a reload does not know of it.
pub async fn drained(root: &Root) -> Vec<Name> {
    let servers = facts(root).await.unwrap_or_default().servers.into_iter();
    servers.filter(|(_, server)| server.state == ServerState::Draining).map(|(name, _)| name).collect()
}

/// Drains them again at the worker after a reload, except those that its configuration does not have any more.
pub async fn drain_again(root: &Root, members: &[Name]) {
    let Ok(known) = facts(root).await else { return };
    for member in members.iter().filter(|member| known.servers.contains_key(*member)) {
        if let Err(error) = set(root, member, Admin::Drain).await {
            tracing::warn!(%member, error = describe(&error), "a drained member gets connections since the reload");
        }
    }
}

/// Waits until no process of it is left that outlived its master, and ends those that hang.
pub async fn end_workers(find: impl Fn() -> Vec<Handle>) {
    let begun = Instant::now();
    // Workers end by themselves when their master has ended.
    while begun.elapsed() < ANSWER_LIMIT {
        if find().is_empty() {
            return;
        }
        sleep(POLL).await;
    }
    for left in find() {
        tracing::warn!(pid = left.pid(), "a worker of HAProxy outlived its master: killed");
        let _ = left.signal(rustix::process::Signal::KILL);
        let _ = timeout(WORKER_LIMIT, left.ended()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_address_counts_only_while_the_machine_has_it() {
        let config = "frontend clients\n    bind 10.0.0.21:2379 tcp-ut 30s\n    \
                      bind 10.0.0.100:2379 tcp-ut 30s transparent\n    bind [fd00::1]:2379\n    # bind 1.1.1.1:1\n";
        let shown =
            |has: bool| -> Vec<String> { listeners_on(config, |_| has).iter().map(ToString::to_string).collect() };
        assert_eq!(shown(false), ["10.0.0.21:2379", "[fd00::1]:2379"]);
        assert_eq!(shown(true), ["10.0.0.21:2379", "10.0.0.100:2379", "[fd00::1]:2379"]);
    }

    #[test]
    fn the_reason_of_an_end_is_the_first_of_the_last_alerts() {
        let log = |text: &str| -> Vec<String> { text.lines().map(ToOwned::to_owned).collect() };
        let text = "[ALERT]    (7) : backend 'etcd' has no server available!\n[NOTICE]   (7) : New worker (9) forked\n\
                    [ALERT]    (7) : Starting frontend clients: cannot bind socket (Address already in use)\n\
                    [ALERT]    (7) : [/usr/sbin/haproxy.main()] Some protocols failed to start their listeners!\n";
        let reason = "Starting frontend clients: cannot bind socket (Address already in use)";
        assert_eq!(fatal(&log(text)).as_deref(), Some(reason));
        assert_eq!(fatal(&log("[ALERT]    (7) : backend 'etcd' has no server available!\nbye\n")), None);
        assert_eq!(fatal(&log("[ALERT]    (7) : Current worker (9) exited with code 143 (Terminated)\n")), None);
    }

    #[tokio::test]
    async fn haproxy_says_why_it_refuses_a_file() {
        let (_dir, root) = Root::scratch();
        let file = Program::Haproxy.files(&root).config();
        std::fs::write(&file, "global\n    maxconn 10\n    maxcon 20\n").expect("written");
        let refused = check(&root, None).await.expect_err("refused");
        assert_eq!(
            refused,
            "config : parsing [haproxy.cfg:3] : unknown keyword 'maxcon' in 'global' section; did you mean 'maxconn' maybe ?"
        );
    }
}
