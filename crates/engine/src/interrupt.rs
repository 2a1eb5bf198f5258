//! An operator's interrupt → a run that finishes the steps under way and starts no other.

use std::future::pending;

use tokio::sync::watch;

/// Asks a run to end.
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

impl Trigger {
    /// From now on no run that watches this starts a step.
    pub fn pull(&self) {
        self.0.send_replace(true);
    }
}

/// Whether a run was asked to end.
#[derive(Debug, Clone)]
pub struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// An interrupt, and what triggers it.
    pub fn new() -> (Trigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (Trigger(sender), Self(receiver))
    }

    /// For runs that no operator watches.
    pub fn never() -> Self {
        Self::new().1
    }

    /// Whether it was asked for.
    pub fn asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once it is asked for.
    pub async fn wait(&self) {
        let mut watched = self.0.clone();
        if watched.wait_for(|asked| *asked).await.is_err() {
            pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn asked_once_and_for_all() {
        let (trigger, interrupt) = Interrupt::new();
        assert!(!interrupt.asked());
        let other = interrupt.clone();
        trigger.pull();
        other.wait().await;
        drop(trigger);
        interrupt.wait().await;
        assert!(interrupt.asked());
        let never = tokio::time::timeout(Duration::from_millis(20), async { Interrupt::never().wait().await });
        assert!(never.await.is_err());
    }
}
