//! Bytes that arrive asynchronously ↔ readers and writers of blocking code, with a small buffer in between.
//!
//! A side that is dropped without an explicit end has failed: the other side gets an error, never an end.

use std::io::{self, Read, Write};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use futures::stream;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// As many pieces wait between the two sides.
const DEPTH: usize = 8;
/// Small writes are put together to pieces of this size.
const PIECE: usize = 256 << 10;

enum Message {
    Piece(Bytes),
    End,
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it was broken off in the middle")
}

/// A way from asynchronous code to a reader.
pub fn inward() -> (Feeder, Inlet) {
    let (sender, receiver) = channel(DEPTH);
    (Feeder { sender }, Inlet { receiver, piece: Bytes::new(), ended: false })
}

/// A way from a writer to asynchronous code.
pub fn outward() -> (Outlet, impl Stream<Item = io::Result<Bytes>> + Send) {
    let (sender, receiver) = channel(DEPTH);
    let pieces = stream::try_unfold(Some(receiver), async |receiver: Option<Receiver<Message>>| {
        let Some(mut receiver) = receiver else { return Ok(None) };
        match receiver.recv().await {
            Some(Message::Piece(piece)) => Ok(Some((piece, Some(receiver)))),
            Some(Message::End) => Ok(None),
            None => Err(broken()),
        }
    });
    (Outlet { sender, piece: BytesMut::with_capacity(PIECE) }, pieces)
}

/// Where asynchronous code puts bytes in.
pub struct Feeder {
    sender: Sender<Message>,
}

impl Feeder {
    /// Waits until there is room. `false` when the reader is gone.
    pub async fn feed(&self, piece: Bytes) -> bool {
        self.sender.send(Message::Piece(piece)).await.is_ok()
    }

    /// That was all.
    pub async fn end(self) -> bool {
        self.sender.send(Message::End).await.is_ok()
    }
}

/// Where blocking code reads them.
pub struct Inlet {
    receiver: Receiver<Message>,
    piece: Bytes,
    ended: bool,
}

impl Read for Inlet {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            if self.ended {
                return Ok(0);
            }
            match self.receiver.blocking_recv() {
                Some(Message::Piece(piece)) => self.piece = piece,
                Some(Message::End) => self.ended = true,
                None => return Err(broken()),
            }
        }
        let many = self.piece.len().min(buffer.len());
        buffer[..many].copy_from_slice(&self.piece.split_to(many));
        Ok(many)
    }
}

/// Where blocking code writes.
pub struct Outlet {
    sender: Sender<Message>,
    piece: BytesMut,
}

impl Outlet {
    /// That was all.
    pub fn end(mut self) -> io::Result<()> {
        self.pass_on()?;
        self.send(Message::End)
    }

    fn pass_on(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, BytesMut::with_capacity(PIECE));
        self.send(Message::Piece(piece.freeze()))
    }

    fn send(&self, message: Message) -> io::Result<()> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the reader is gone");
        self.sender.blocking_send(message).map_err(gone)
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let many = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..many]);
        if self.piece.len() == PIECE {
            self.pass_on()?;
        }
        Ok(many)
    }

    /// Does nothing: pieces are sent when they are full, and at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use tokio::task::spawn_blocking;

    use super::*;

    #[tokio::test]
    async fn what_goes_in_comes_out() {
        let (feeder, mut inlet) = inward();
        let (mut outlet, pieces) = outward();
        let copying = spawn_blocking(move || {
            io::copy(&mut inlet, &mut outlet)?;
            outlet.end()
        });
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| n.to_le_bytes()[0]).collect();
        let whole = Bytes::from(sent.clone());
        let feeding = async move {
            for start in (0..whole.len()).step_by(77_777) {
                assert!(feeder.feed(whole.slice(start..whole.len().min(start + 77_777))).await);
            }
            assert!(feeder.end().await);
        };
        let (received, ()) = futures::join!(pieces.map(Result::unwrap).collect::<Vec<_>>(), feeding);
        assert_eq!(received.concat(), sent);
        copying.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_is_broken_off_is_no_end() {
        let (feeder, mut inlet) = inward();
        let (mut outlet, pieces) = outward();
        assert!(feeder.feed(Bytes::from_static(b"half")).await);
        drop(feeder);
        let copying = spawn_blocking(move || {
            io::copy(&mut inlet, &mut outlet)?;
            outlet.end()
        });
        let received: Vec<_> = pieces.collect().await;
        assert!(received.last().unwrap().is_err());
        assert_eq!(copying.await.unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);

        let (mut outlet, pieces) = outward();
        drop(pieces);
        let writing = spawn_blocking(move || outlet.write_all(b"more").and_then(|()| outlet.end()));
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
