//! a call → its answer within the time that such a call may take, or the name of the server that did not answer it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Bytes, Service, http};
use tonic::transport::Channel;

/// How long a call may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// From the last byte that was sent to the first of the answer; none for calls that the caller ends.
    pub answer: Option<Duration>,
    /// Between two messages of an answer that is a stream.
    pub silence: Option<Duration>,
    /// Whether the time-out of the whole run shortens it: the server does nothing meanwhile that takes longer.
    pub prompt: bool,
}

/// The limit of a call, by its name in the protocol.
pub type Table = fn(&str) -> Limit;

/// A channel on which every call has a limit.
///
/// What is sent in pieces is bounded by its progress: the time counts from the last piece.
#[derive(Clone, Debug)]
pub struct Deadlined {
    channel: Channel,
    server: Arc<str>,
    table: Table,
    most: Duration,
}

impl Deadlined {
    /// `server` is how messages name it: `the agent of main-2`.
    pub fn new(channel: Channel, server: &str, table: Table) -> Self {
        Self { channel, server: server.into(), table, most: Duration::MAX }
    }

    /// The same for a run that ends after this time.
    #[must_use]
    pub fn at_most(self, most: Duration) -> Self {
        Self { most, ..self }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Status>> + Send>>;

impl Service<http::Request<Body>> for Deadlined {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Service::poll_ready(&mut self.channel, context).map_err(|error| broken(&self.server, "connecting", &error))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let (mut limit, server) = ((self.table)(&name), Arc::clone(&self.server));
        if limit.prompt {
            limit.answer = limit.answer.map(|answer| answer.min(self.most));
        }
        let moved = Progress::default();
        let sent = moved.clone();
        let answer = Service::call(&mut self.channel, request.map(|body| Body::new(Sent { body, moved: sent })));
        Box::pin(async move {
            let mut answer = pin!(answer);
            let response = loop {
                let Some(within) = limit.answer else { break answer.await };
                match timeout_at(moved.last() + within, &mut answer).await {
                    Ok(answered) => break answered,
                    // Something was sent meanwhile.
                    Err(_) if moved.last() + within > Instant::now() => {}
                    Err(_) => return Err(silent(&server, &name, within)),
                }
            };
            let response = response.map_err(|error| broken(&server, &name, &error))?;
            let Some(within) = limit.silence else { return Ok(response) };
            Ok(response.map(|body| {
                let due = Box::pin(sleep_until(Instant::now() + within));
                Body::new(Received { body, within, due, server, name })
            }))
        })
    }
}

fn silent(server: &str, call: &str, within: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "{server} has not answered {call} within {} s: its process, its disk or its network hangs",
        within.as_secs_f32()
    ))
}

fn broken(server: &str, call: &str, error: &(dyn std::error::Error + 'static)) -> Status {
    let mut text = format!("the connection to {server} broke ({call}): {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    Status::unavailable(text)
}

/// When something was sent last.
#[derive(Clone, Debug)]
struct Progress(Arc<Mutex<Instant>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Progress {
    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A request's body that notes when a piece of it goes out.
struct Sent {
    body: Body,
    moved: Progress,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.moved.touch();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body that ends with an error when nothing comes for too long.
struct Received {
    body: Body,
    within: Duration,
    due: Pin<Box<Sleep>>,
    server: Arc<str>,
    name: String,
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let due = Instant::now() + self.within;
            self.due.as_mut().reset(due);
            return Poll::Ready(frame);
        }
        ready!(self.due.as_mut().poll(context));
        Poll::Ready(Some(Err(silent(&self.server, &self.name, self.within))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
