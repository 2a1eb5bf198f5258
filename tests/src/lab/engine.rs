//! A lab → its fleet as the engine opens it, for tests that drive the engine without the command line.

use std::sync::Arc;

use raftsman_engine::fleet::{Context, Fleet};
use raftsman_engine::stack::StackHandle;
use raftsman_engine::store::{Lock, LockInfo};

use super::{Lab, binary, home};

/// Waits for the engine in a test that is not asynchronous, or from within one that is: on a runtime of its own.
pub fn block_on<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work);
    std::thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
}

/// The lab's fleet.
pub fn fleet(lab: &Lab) -> Arc<Fleet> {
    let spec = raftsman_core::spec::read(&lab.file()).spec.expect("a valid file");
    let context = Context {
        file: lab.path().join("raftsman.yaml"),
        agent: binary("raftsman-agent"),
        registry: home().join("raftsman/networks"),
        identity: None,
        passphrase: None,
        ask_passphrase: None,
        user: "test".to_owned(),
        host: "here".to_owned(),
        examined: Default::default(),
    };
    block_on(Fleet::open(spec, context, jiff::Timestamp::now())).expect("the fleet")
}

/// One of its clusters.
pub fn cluster(lab: &Lab, name: &str) -> StackHandle {
    let fleet = fleet(lab);
    let desired = fleet.desired.stacks.iter().find(|cluster| cluster.name.as_str() == name).expect("the cluster");
    block_on(StackHandle::open(&fleet, desired)).expect("the cluster's state")
}

/// The lock of the state as it was when this generation was given out. The state's own count stays what it is.
pub fn lock(lab: &Lab, generation: u64) -> Lock {
    let path = lab.path().join(".raftsman/generation");
    let newest = std::fs::read(&path).expect("a generation");
    std::fs::write(&path, format!("{}\n", generation - 1)).expect("an older generation");
    let info = LockInfo {
        verb: "test".to_owned(),
        user: "test".to_owned(),
        host: "here".to_owned(),
        pid: std::process::id(),
        since: jiff::Timestamp::now(),
    };
    let lock = block_on(fleet(lab).store.lock(info)).expect("the lock");
    assert_eq!(lock.generation(), generation);
    std::fs::write(&path, newest).expect("the generation");
    lock
}
