//! Readers, writers, kills, stale processes, lost and damaged files on the real state, in seeded interleavings → never an
//! action that the true ledger would have forbidden.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raftsman_engine::store::{Kept, Lock, LockInfo, Protection, Store, StoreError, Version};
use raftsman_tests::dice::Dice;
use raftsman_tests::lab::soak;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

const CLUSTER: &str = "main";
/// Every run does so many single steps of processes; with fewer, a stale process meets too few others.
const STEPS: usize = 60;

/// What the planner depends on, in small: which members etcd was started on, and how often the CA was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ledger {
    started: BTreeSet<u8>,
    authority: u32,
}

/// The world itself: what the ledger should contain.
#[derive(Debug, Clone, Default)]
struct World {
    members: BTreeSet<u8>,
    authority: u32,
}

/// How a state can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Sound,
    /// Writers take no lock.
    NoLock,
    /// What was read is written back whatever is there by now.
    NoCompareAndSwap,
    /// Readers write what they learnt.
    LearnOnRead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reader,
    Writer,
    /// Reads before it takes the lock, as a process that was stopped in between.
    Early,
    Repairer,
}

/// What a writer is about to do.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Start(u8),
    Remove(u8),
    Rotate,
}

struct Process {
    kind: Kind,
    at: u32,
    lock: Option<Lock>,
    kept: Option<Kept<Ledger>>,
    seen: BTreeSet<u8>,
    operation: Option<Operation>,
}

struct Sim {
    runtime: Arc<Runtime>,
    store: Store,
    state: State,
    world: World,
    dice: Dice,
    processes: Vec<Process>,
    /// Whether there ever was a ledger: keys in the state would show it.
    begun: bool,
    refused: u64,
}

/// A process ends: what it wanted is done, or was refused.
struct Ended;

impl Sim {
    fn path(&self) -> PathBuf {
        self.store.dir().join("clusters/main.json")
    }

    fn spawn(&mut self) {
        let kind = match self.dice.below(10) {
            0..=2 => Kind::Reader,
            3..=6 => Kind::Writer,
            7..=8 => Kind::Early,
            _ => Kind::Repairer,
        };
        self.processes.push(Process { kind, at: 0, lock: None, kept: None, seen: BTreeSet::new(), operation: None });
    }

    /// As a cluster is opened: a ledger that is missing where there was one is refused.
    fn read(&mut self) -> Result<Kept<Ledger>, Ended> {
        match self.runtime.block_on(self.store.get_cluster::<Ledger>(CLUSTER)) {
            Ok(Some(kept)) => Ok(kept),
            Ok(None) if !self.begun => Ok(Kept { value: Ledger::default(), version: Version::none() }),
            Ok(None) | Err(StoreError::LedgerDamaged { .. }) => {
                self.refused += 1;
                Err(Ended)
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn lock(&mut self) -> Result<Option<Lock>, Ended> {
        // The lock waits a moment before it refuses: most of that time is saved, not all of it.
        let held = self.processes.iter().any(|process| process.lock.is_some());
        if held && !self.dice.one_in(200) {
            return Err(Ended);
        }
        match self.runtime.block_on(self.store.lock(LockInfo::new("apply", "sim", "sim"))) {
            Ok(_) if held => panic!("VIOLATION: the lock is held twice"),
            Ok(lock) => Ok(Some(lock)),
            Err(StoreError::Locked { .. }) => Err(Ended),
            Err(error) => panic!("{error}"),
        }
    }

    /// Writes; a broken state writes behind the back of the real one.
    fn put(&mut self, process: &mut Process) -> Result<(), Ended> {
        let Some(kept) = &mut process.kept else { return Err(Ended) };
        // The first version is made only where nothing is kept of the cluster: looked at again under the lock.
        if self.state == State::Sound && self.begun && kept.version == Version::none() {
            self.refused += 1;
            return Err(Ended);
        }
        self.begun = true;
        let blind = match self.state {
            State::Sound | State::LearnOnRead => false,
            State::NoLock => process.lock.is_none(),
            State::NoCompareAndSwap => true,
        };
        if blind || process.kind == Kind::Reader {
            // Whatever is there: as its successor.
            let lock = match &process.lock {
                Some(lock) => lock.clone(),
                None => match self.runtime.block_on(self.store.lock(LockInfo::new("broken", "sim", "sim"))) {
                    Ok(lock) => lock,
                    Err(_) => return Err(Ended),
                },
            };
            kept.version =
                self.runtime.block_on(self.store.replace_cluster(&lock, CLUSTER, &kept.value)).expect("written");
            return Ok(());
        }
        let lock = process.lock.as_ref().expect("a writer has the lock");
        let before = std::fs::read(self.path()).ok();
        match self.runtime.block_on(self.store.put_cluster(lock, CLUSTER, &kept.version, &kept.value)) {
            Ok(version) => kept.version = version,
            Err(StoreError::LedgerChanged { .. } | StoreError::LedgerDamaged { .. }) => {
                self.refused += 1;
                return Err(Ended);
            }
            Err(error) => panic!("{error}"),
        }
        // Killed between the copy in the history and the ledger itself.
        if self.dice.below(40) == 0 {
            match before {
                Some(bytes) => std::fs::write(self.path(), bytes).expect("written"),
                None => std::fs::remove_file(self.path()).expect("removed"),
            }
            return Err(Ended);
        }
        Ok(())
    }

    fn learn(process: &mut Process) {
        if let Some(kept) = &mut process.kept {
            let seen = &process.seen;
            kept.value.started.retain(|member| seen.contains(member));
        }
    }

    /// One step of one process.
    fn step(&mut self, process: &mut Process) -> Result<(), Ended> {
        let at = process.at;
        process.at += 1;
        match (process.kind, at) {
            (Kind::Reader, 0) => process.kept = Some(self.read()?),
            (Kind::Reader, 1) => process.seen.clone_from(&self.world.members),
            (Kind::Reader, 2) if self.state == State::LearnOnRead => {
                Self::learn(process);
                self.put(process)?;
            }
            (Kind::Reader, _) => return Err(Ended),
            (Kind::Repairer, 0) => process.lock = self.lock()?,
            (Kind::Repairer, _) => {
                if self.begun && self.read().is_err() {
                    let lock = process.lock.as_ref().ok_or(Ended)?;
                    let ledger = match self
                        .runtime
                        .block_on(self.store.newest_in_history::<Ledger>(CLUSTER))
                        .expect("a history")
                    {
                        Some(kept) => kept.value,
                        None => Ledger { started: self.world.members.clone(), authority: self.world.authority },
                    };
                    self.runtime.block_on(self.store.replace_cluster(lock, CLUSTER, &ledger)).expect("repaired");
                }
                return Err(Ended);
            }
            (Kind::Writer, 0) | (Kind::Early, 1) => {
                if self.state != State::NoLock {
                    process.lock = self.lock()?;
                }
            }
            (Kind::Writer, 1) | (Kind::Early, 0) => process.kept = Some(self.read()?),
            // What was observed under the lock is recorded before any step depends on it.
            (Kind::Writer | Kind::Early, 2) => process.seen.clone_from(&self.world.members),
            (Kind::Writer | Kind::Early, 3) => {
                Self::learn(process);
                self.put(process)?;
                let ledger = &process.kept.as_ref().ok_or(Ended)?.value;
                process.operation = Some(match self.dice.below(4) {
                    0 => Operation::Rotate,
                    1 if !ledger.started.is_empty() => {
                        Operation::Remove(*ledger.started.iter().next_back().expect("one"))
                    }
                    _ => match (0..5).find(|member| !ledger.started.contains(member)) {
                        Some(member) => Operation::Start(member),
                        None => Operation::Rotate,
                    },
                });
            }
            // Written ahead.
            (Kind::Writer | Kind::Early, 4) => {
                let ledger = &mut process.kept.as_mut().ok_or(Ended)?.value;
                match process.operation {
                    Some(Operation::Start(member)) => _ = ledger.started.insert(member),
                    Some(Operation::Rotate) => ledger.authority += 1,
                    Some(Operation::Remove(_)) | None => {}
                }
                self.put(process)?;
            }
            (Kind::Writer | Kind::Early, _) => {
                self.act(process);
                return Err(Ended);
            }
        }
        Ok(())
    }

    /// The true ledger is the world's: an action that it would have forbidden is the violation.
    fn act(&mut self, process: &Process) {
        let Some(ledger) = process.kept.as_ref().map(|kept| &kept.value) else { return };
        match process.operation {
            Some(Operation::Start(member)) => {
                let new = self.world.members.insert(member);
                assert!(new, "VIOLATION: member {member} is started again, empty, under its old name");
            }
            Some(Operation::Remove(member)) => _ = self.world.members.remove(&member),
            Some(Operation::Rotate) => {
                assert!(
                    ledger.authority > self.world.authority,
                    "VIOLATION: an authority that was changed is made again"
                );
                self.world.authority = ledger.authority;
            }
            None => {}
        }
    }

    fn fault(&mut self) {
        match self.dice.below(3) {
            0 => _ = std::fs::remove_file(self.path()),
            1 if self.path().exists() => std::fs::write(self.path(), "{").expect("damaged"),
            _ => {
                // The history goes, or its newest copy is damaged.
                let dir = self.store.dir().join("history");
                let mut copies: Vec<_> = std::fs::read_dir(&dir).expect("listed").flatten().map(|e| e.path()).collect();
                copies.sort();
                match copies.last() {
                    Some(newest) if self.dice.one_in(2) => std::fs::write(newest, "{").expect("damaged"),
                    Some(_) => copies.iter().for_each(|copy| std::fs::remove_file(copy).expect("removed")),
                    None => {}
                }
            }
        }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            match self.dice.below(20) {
                0..=3 => self.spawn(),
                // Killed: whatever it held is free.
                4 if !self.processes.is_empty() => {
                    let index = self.pick();
                    self.processes.swap_remove(index);
                }
                5 if self.dice.below(4) == 0 => self.fault(),
                _ if self.processes.is_empty() => self.spawn(),
                _ => {
                    let index = self.pick();
                    let mut process = self.processes.swap_remove(index);
                    if self.step(&mut process).is_ok() {
                        self.processes.push(process);
                    }
                }
            }
        }
    }

    fn pick(&mut self) -> usize {
        self.dice.below(self.processes.len())
    }
}

/// A state in memory where the system has tmpfs: no disk is worn out.
fn place() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let builder = || tempfile::Builder::new();
    let in_memory = memory.is_dir().then(|| builder().prefix("raftsman-sim-").tempdir_in(memory).ok()).flatten();
    in_memory.unwrap_or_else(|| tempfile::tempdir().expect("a directory"))
}

/// Runs the interleavings; the first violation, with its seed.
fn simulate(state: State, runs: u64) -> Result<u64, String> {
    let place = place();
    let dir = place.path().join("state");
    let now = jiff::Timestamp::UNIX_EPOCH;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = Arc::new(runtime.expect("a runtime"));
    let made = Store::create(&dir, "sim", None, Protection::IdentityFile, now);
    let store = runtime.block_on(made).expect("a state");
    let mut refused = 0;
    for seed in 0..runs {
        for shelf in ["clusters", "history"] {
            for file in std::fs::read_dir(dir.join(shelf)).expect("listed").flatten() {
                std::fs::remove_file(file.path()).expect("removed");
            }
        }
        let (world, dice) = (World::default(), Dice::new(seed));
        let (runtime, store) = (Arc::clone(&runtime), store.clone());
        let mut sim = Sim { runtime, store, state, world, dice, processes: Vec::new(), begun: false, refused: 0 };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.run()));
        if let Err(panic) = outcome {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            return Err(format!("seed {seed}: {}", text.unwrap_or_default()));
        }
        refused += sim.refused;
    }
    Ok(refused)
}

#[test]
fn no_interleaving_does_what_the_true_ledger_forbids() {
    let runs = if soak() { 100_000 } else { 4_000 };
    let refused = simulate(State::Sound, runs).unwrap_or_else(|violation| panic!("{violation}"));
    // Otherwise nothing was tried.
    assert!(refused > runs / 20, "only {refused} refusals in {runs} runs");
}

#[test]
fn broken_states_are_caught() {
    for state in [State::NoLock, State::NoCompareAndSwap, State::LearnOnRead] {
        let caught = simulate(state, 20_000).expect_err(&format!("{state:?} was not caught"));
        assert!(caught.contains("VIOLATION"), "{state:?}: {caught}");
    }
}
