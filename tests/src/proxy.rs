//! A server's socket or port, a plan of faults → one in front of it, behind which requests and replies get lost or changed.
//!
//! Every request has a connection of its own to the server, and the reply ends the client's: so nothing but the requests
//! needs to be understood.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::dice::Dice;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it is passed on, and so is the reply.
    None,
    /// It is passed on and carried out, but the connection ends before the reply.
    LostReply,
    /// It is refused with 503, and the server has not seen it.
    Refused,
    /// It is passed on after a while.
    Stalled(Duration),
    /// The connection ends, and the server has not seen it.
    Lost,
    /// It is carried out, and the connection ends in the middle of the reply's body.
    Truncated,
    /// It is carried out, and one bit in the middle of the reply's body is another.
    Garbled,
    /// One bit in the middle of its own body is another.
    GarbledRequest,
}

/// A connection of either kind.
enum Wire {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Wire {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where something listens.
#[derive(Debug, Clone)]
enum At {
    Unix(PathBuf),
    Tcp(String),
}

impl At {
    fn connect(&self) -> io::Result<Wire> {
        Ok(match self {
            Self::Unix(path) => Wire::Unix(UnixStream::connect(path)?),
            Self::Tcp(address) => Wire::Tcp(TcpStream::connect(address)?),
        })
    }
}

/// A request as a plan sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its method.
    pub method: String,
    /// Its path, with the query.
    pub path: String,
    /// How many came before with the same method and path.
    pub before: usize,
}

/// A plan by which each kind of fault comes to about one in so many requests. The same seed has the same fate for the same
/// request, in whatever order they come.
pub fn seeded(seed: u64, one_in: usize, stall: Duration) -> impl FnMut(&Request) -> Fault + Send + 'static {
    move |request| {
        let mut hasher = DefaultHasher::new();
        (seed, &request.method, &request.path, request.before).hash(&mut hasher);
        let mut dice = Dice::new(hasher.finish());
        let faults = [Fault::LostReply, Fault::Refused, Fault::Stalled(stall), Fault::Lost];
        // Below four in all there would be no room for a request that is passed on.
        faults.get(dice.below(one_in.max(5))).copied().unwrap_or(Fault::None)
    }
}

type Plan = Box<dyn FnMut(&Request) -> Fault + Send>;

struct Shared {
    server: At,
    ends: AtomicBool,
    state: Mutex<State>,
}

struct State {
    plan: Plan,
    seen: BTreeMap<(String, String), usize>,
    log: Vec<(Request, Fault)>,
}

/// A proxy that runs. Dropped, it takes no more connections.
pub struct Proxy {
    at: At,
    shared: Arc<Shared>,
    listens: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens at a socket in front of a server's.
    pub fn start(socket: &Path, server: &Path, plan: impl FnMut(&Request) -> Fault + Send + 'static) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let accept = move || listener.accept().map(|(client, _)| Wire::Unix(client));
        Self::listen(At::Unix(socket.to_owned()), At::Unix(server.to_owned()), accept, plan)
    }

    /// Listens at a port of its own in front of a server's (`address:port`).
    pub fn tcp(server: &str, plan: impl FnMut(&Request) -> Fault + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = At::Tcp(listener.local_addr().expect("its address").to_string());
        let accept = move || listener.accept().map(|(client, _)| Wire::Tcp(client));
        Self::listen(at, At::Tcp(server.to_owned()), accept, plan)
    }

    fn listen(
        at: At,
        server: At,
        accept: impl Fn() -> io::Result<Wire> + Send + 'static,
        plan: impl FnMut(&Request) -> Fault + Send + 'static,
    ) -> Self {
        let state = State { plan: Box::new(plan), seen: BTreeMap::new(), log: Vec::new() };
        let shared = Arc::new(Shared { server, ends: AtomicBool::new(false), state: Mutex::new(state) });
        let of_all = Arc::clone(&shared);
        let listens = std::thread::spawn(move || {
            while let Ok(client) = accept() {
                if of_all.ends.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&of_all);
                // Broken connections are this proxy's purpose: their errors are ignored.
                std::thread::spawn(move || shared.serve(client));
            }
        });
        Self { at, shared, listens: Some(listens) }
    }

    /// The socket that it listens at.
    pub fn socket(&self) -> &Path {
        match &self.at {
            At::Unix(path) => path,
            At::Tcp(address) => Path::new(address),
        }
    }

    /// The address and port that it listens at.
    pub fn address(&self) -> &str {
        match &self.at {
            At::Unix(path) => path.to_str().unwrap_or_default(),
            At::Tcp(address) => address,
        }
    }

    /// From now on another plan.
    pub fn plan(&self, plan: impl FnMut(&Request) -> Fault + Send + 'static) {
        self.shared.state().plan = Box::new(plan);
    }

    /// Requests so far, and what became of them.
    pub fn log(&self) -> Vec<(Request, Fault)> {
        self.shared.state().log.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        // It waits for one more connection.
        let _ = self.at.connect();
        let _ = self.listens.take().map(JoinHandle::join);
        if let At::Unix(socket) = &self.at {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no plan panics")
    }

    fn fate(&self, method: &str, path: &str) -> Fault {
        let mut state = self.state();
        let seen = state.seen.entry((method.to_owned(), path.to_owned())).or_default();
        let request = Request { method: method.to_owned(), path: path.to_owned(), before: *seen };
        *seen += 1;
        let fault = (state.plan)(&request);
        state.log.push((request, fault));
        fault
    }

    /// One request and its reply. `None` when a connection broke.
    fn serve(&self, client: Wire) -> Option<()> {
        let mut from_client = BufReader::new(client.try_clone().ok()?);
        let mut to_client = client;
        let head = read_head(&mut from_client)?;
        let mut words = head.first()?.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        let fault = self.fate(method, path);
        match fault {
            Fault::Lost => return None,
            Fault::Refused => {
                // The client may wait for its body to be taken.
                relay_body(&head, &mut from_client, &mut io::sink())?;
                let body = r#"{"type":"error","error":"the server is starting","error_code":503}"#;
                let length = body.len();
                return write!(
                    to_client,
                    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
                     Connection: close\r\n\r\n{body}"
                )
                .ok();
            }
            Fault::Stalled(time) => std::thread::sleep(time),
            Fault::None | Fault::LostReply | Fault::Truncated | Fault::Garbled | Fault::GarbledRequest => {}
        }
        let mut server = self.server.connect().ok()?;
        let upgraded = value(&head, "upgrade").is_some();
        for line in &head {
            if upgraded || !named(line, "connection") {
                write!(server, "{line}\r\n").ok()?;
            }
        }
        let end = if upgraded { "\r\n" } else { "Connection: close\r\n\r\n" };
        server.write_all(end.as_bytes()).ok()?;
        if upgraded {
            let mut upstream = server.try_clone().ok()?;
            // In both directions until either ends.
            std::thread::spawn(move || {
                let _ = io::copy(&mut from_client, &mut upstream);
                let _ = upstream.shutdown();
            });
        } else if fault == Fault::GarbledRequest {
            let mut body = Vec::new();
            relay_body(&head, &mut from_client, &mut body)?;
            flip(&mut body);
            server.write_all(&body).ok()?;
        } else {
            relay_body(&head, &mut from_client, &mut server)?;
        }
        let mut reply = BufReader::new(server);
        if fault == Fault::LostReply {
            // The whole reply: then the server has carried it out.
            io::copy(&mut reply, &mut io::sink()).ok()?;
        } else if matches!(fault, Fault::Truncated | Fault::Garbled) {
            for line in read_head(&mut reply)? {
                write!(to_client, "{line}\r\n").ok()?;
            }
            to_client.write_all(b"\r\n").ok()?;
            let mut body = Vec::new();
            reply.read_to_end(&mut body).ok()?;
            match fault {
                Fault::Truncated => body.truncate(body.len() / 2),
                _ => flip(&mut body),
            }
            to_client.write_all(&body).ok()?;
        } else {
            io::copy(&mut reply, &mut to_client).ok()?;
        }
        to_client.shutdown().ok()
    }
}

/// Lines up to the empty one, without their ends.
fn read_head(from: &mut BufReader<Wire>) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            return Some(lines);
        }
        lines.push(line.to_owned());
    }
}

fn flip(body: &mut [u8]) {
    let middle = body.len() / 2;
    if let Some(byte) = body.get_mut(middle) {
        *byte ^= 4;
    }
}

fn named(line: &str, name: &str) -> bool {
    line.split_once(':').is_some_and(|(found, _)| found.eq_ignore_ascii_case(name))
}

fn value<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    head.iter().find(|line| named(line, name)).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
}

/// Passes a request's body on as it is. `None` when the client ended before it: the server must see that, too, and would
/// otherwise wait for the rest for ever, with whatever it holds for the request.
fn relay_body(head: &[String], from: &mut BufReader<Wire>, to: &mut impl Write) -> Option<()> {
    if value(head, "transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        loop {
            let mut line = String::new();
            from.read_line(&mut line).ok()?;
            to.write_all(line.as_bytes()).ok()?;
            let size = u64::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
            // The chunk and the end of its line.
            all_of(size + 2, from, to)?;
            if size == 0 {
                return Some(());
            }
        }
    }
    let length = value(head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    all_of(length, from, to)
}

fn all_of(length: u64, from: &mut BufReader<Wire>, to: &mut impl Write) -> Option<()> {
    let copied = io::copy(&mut from.take(length), to).ok()?;
    (copied == length).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_ends_half_way_ends_the_request_at_the_server() {
        let dir = tempfile::tempdir().expect("a directory");
        let server = UnixListener::bind(dir.path().join("server")).expect("a socket");
        let proxy = Proxy::start(&dir.path().join("proxy"), &dir.path().join("server"), |_| Fault::None);
        let mut client = UnixStream::connect(proxy.socket()).expect("the proxy");
        client.write_all(b"POST /x HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf").expect("half a request");
        let (mut seen, _) = server.accept().expect("a connection");
        drop(client);
        seen.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        let mut request = String::new();
        seen.read_to_string(&mut request).expect("the end, not the limit");
        assert!(request.ends_with("\r\n\r\nhalf"), "{request}");
    }
}
