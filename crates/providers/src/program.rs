//! a system program, its standard input → its output, or its message when it failed.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

/// Of a long message the end matters.
const MOST_WORDS: usize = 1500;

/// How a program failed.
pub(crate) enum Failure {
    /// It could not be run.
    NotRun(io::Error),
    /// It did not end in time.
    TooLong,
    /// It ended with this code and this message.
    Refused { code: Option<i32>, words: String },
}

/// Runs a program with this on its standard input; returns its output.
pub(crate) async fn run(command: &mut Command, input: Vec<u8>, limit: Duration) -> Result<Vec<u8>, Failure> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(Failure::NotRun)?;
    let mut stdin = child.stdin.take();
    let feed = async move {
        if let Some(stdin) = &mut stdin {
            // A program that does not read it has ended, and its output says why.
            let _ = stdin.write_all(&input).await;
        }
    };
    let both = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = timeout(limit, both).await.map_err(|_| Failure::TooLong)?.map_err(Failure::NotRun)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let words = words.chars().skip(words.chars().count().saturating_sub(MOST_WORDS)).collect();
    Err(Failure::Refused { code: output.status.code(), words })
}
