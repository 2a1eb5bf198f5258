//! work that can wait → threads with a lower priority than etcd's.
//!
//! A backup uses all cores that it gets, and a member on the same machine must answer within milliseconds.

use std::io;
use std::panic::resume_unwind;

use rustix::process::setpriority_process;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinHandle, JoinSet};

/// Of 19 steps down: about a tenth of a core while other processes compete for it, all of it otherwise.
const NICE: i32 = 10;

/// Threads with a lower priority than all others, as have the processes that they start.
#[derive(Debug)]
pub struct Background {
    threads: Handle,
    /// Only taken to end them.
    runtime: Option<Runtime>,
}

impl Background {
    /// Starts them.
    pub fn start() -> io::Result<Self> {
        let step_back = || {
            // For this thread alone. Every process may lower its own priority; if it fails, the work runs at normal
            // priority.
            let _ = setpriority_process(None, NICE);
        };
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2).thread_name("background").on_thread_start(step_back).enable_all();
        let runtime = builder.build()?;
        Ok(Self { threads: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Runs it to its end, also when the caller drops the handle.
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.threads.spawn(work)
    }

    /// Runs it for as long as the caller awaits it.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(work, &self.threads);
        match tasks.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
            // The agent ends.
            Some(Err(_)) | None => std::future::pending().await,
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;

    use rustix::process::getpriority_process;
    use tokio::task::spawn_blocking;
    use tokio::time::{Duration, sleep, timeout};

    use super::*;

    #[tokio::test]
    async fn it_comes_later_and_so_does_what_it_starts() {
        let background = Background::start().unwrap();
        let mine = getpriority_process(None).unwrap();
        let theirs = background
            .run(async {
                let blocking = spawn_blocking(|| getpriority_process(None).unwrap()).await.unwrap();
                let started = Command::new("nice").output().unwrap();
                (getpriority_process(None).unwrap(), blocking, String::from_utf8(started.stdout).unwrap())
            })
            .await;
        assert_eq!(theirs, (NICE, NICE, format!("{NICE}\n")));
        assert_eq!(getpriority_process(None).unwrap(), mine, "the waiting thread is as before");
    }

    #[tokio::test]
    async fn what_no_task_waits_for_ends() {
        let background = Background::start().unwrap();
        let held = Arc::new(());
        let inside = Arc::clone(&held);
        let work = async move {
            let _inside = inside;
            sleep(Duration::from_secs(3600)).await;
        };
        timeout(Duration::from_millis(10), background.run(work)).await.unwrap_err();
        while Arc::strong_count(&held) > 1 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}
