//! An attacker with write access to the backup store and no key of the fleet → forged objects are not counted,
//! verified, tested or restored, and no genuine object is removed because of them.

#![allow(clippy::print_stdout, reason = "a test says how many attacks it tried")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use raftsman_backup::{PublicKey, Signer};
use raftsman_core::backup::{
    Batch, BatchName, Coding, Drill, FullName, History, Layout, Manifest, Signable, Signature,
};
use raftsman_core::observed::ClusterId;
use raftsman_core::spec::{EtcdVersion, Name};
use raftsman_tests::dice::Dice;
use raftsman_tests::files::below;
use raftsman_tests::lab::{Lab, eventually, soak};

const VERSION: &str = "3.6.15";

/// A store with backups of a cluster, and an attacker that can write to it.
struct Attacker {
    store: PathBuf,
    layout: Layout,
    /// The attacker's own key.
    own: Signer,
    /// Two full backups, and the batches since the newer one.
    fulls: Vec<Manifest>,
    batches: Vec<Batch>,
}

/// What the attacker puts under a manifest in the place of a signature.
#[derive(Debug, Clone, Copy)]
enum Sign {
    Nothing,
    WithForeignKey,
    ForeignSignatureUnderOurKey,
    OurSignatureOfAnother,
    OurSignatureOfIt,
}

const SIGNS: [Sign; 5] = [
    Sign::Nothing,
    Sign::WithForeignKey,
    Sign::ForeignSignatureUnderOurKey,
    Sign::OurSignatureOfAnother,
    Sign::OurSignatureOfIt,
];

impl Attacker {
    fn new(store: &Path) -> Self {
        let layout = Layout::new("", &Name::fixed("lab"), &Name::fixed("main"));
        let own = Signer::new(&[66; 32]).expect("a key");
        let mut attacker = Self { store: store.to_owned(), layout, own, fulls: Vec::new(), batches: Vec::new() };
        let mut names: Vec<FullName> = std::fs::read_dir(attacker.path(&attacker.layout.fulls()))
            .expect("backups")
            .map(|entry| entry.expect("one").file_name().to_string_lossy().parse().expect("a name"))
            .collect();
        names.sort();
        attacker.fulls = names.iter().map(|name| attacker.read(&attacker.layout.manifest(*name))).collect();
        let newest = *names.last().expect("a backup");
        attacker.batches = (1..)
            .map(|number| attacker.layout.batch_manifest(BatchName { base: newest, number }))
            .take_while(|path| attacker.path(path).exists())
            .map(|path| attacker.read(&path))
            .collect();
        attacker
    }

    fn path(&self, object: &str) -> PathBuf {
        self.store.join(object)
    }

    fn read<T: Signable>(&self, object: &str) -> T {
        serde_json::from_slice(&std::fs::read(self.path(object)).expect("an object")).expect("a manifest")
    }

    fn signature(&self, object: &str) -> Signature {
        let text: serde_json::Value =
            serde_json::from_slice(&std::fs::read(self.path(object)).expect("an object")).expect("JSON");
        serde_json::from_value(text["signed"].clone()).expect("a signature")
    }

    fn put(&self, object: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(object);
        std::fs::create_dir_all(path.parent().expect("above")).expect("a directory");
        std::fs::write(path, bytes).expect("a lie");
    }

    fn newest(&self) -> Manifest {
        self.fulls.last().expect("a backup").clone()
    }

    /// Puts a forged manifest there. `of` is what it takes the place of, and `another` is one of ours.
    fn forge<T: Signable>(&self, object: &str, thing: &T, sign: Sign, of: &str, another: &str) {
        let own: Signature = {
            let text: serde_json::Value = serde_json::from_str(&self.own.text(thing).expect("a text")).expect("JSON");
            serde_json::from_value(text["signed"].clone()).expect("a signature")
        };
        let signed = match sign {
            Sign::Nothing => None,
            Sign::WithForeignKey => Some(own),
            Sign::ForeignSignatureUnderOurKey => Some(Signature { key: self.signature(of).key, ..own }),
            Sign::OurSignatureOfAnother => Some(self.signature(another)),
            Sign::OurSignatureOfIt => Some(self.signature(of)),
        };
        self.put(object, thing.text(signed).expect("a text"));
    }

    fn forge_full(&self, full: &Manifest, sign: Sign) {
        let newest = self.layout.manifest(self.newest().about.name);
        let older = self.layout.manifest(self.fulls[0].about.name);
        self.forge(&self.layout.manifest(full.about.name), full, sign, &newest, &older);
    }

    fn forge_batch(&self, batch: &Batch, sign: Sign) {
        let of = self.layout.batch_manifest(batch.name());
        let of = if self.path(&of).exists() { of } else { self.layout.batch_manifest(self.batches[0].name()) };
        let another = self.layout.batch_manifest(self.batches[1].name());
        self.forge(&self.layout.batch_manifest(batch.name()), batch, sign, &of, &another);
    }
}

/// What is done, what is asked of raftsman then, and what it says.
struct Attack {
    name: &'static str,
    attempt: Box<dyn Fn(&Attacker)>,
    asked: &'static [&'static str],
    refusal: &'static str,
}

const SHOW: &[&str] = &["restore", "--show"];
const RESTORE: &[&str] = &["restore", "--yes"];
const UNSIGNED: &str = "is not signed";
const OTHER: &str = "is not the key of this cluster";
const FORGED: &str = "does not fit";

fn attack(
    name: &'static str,
    asked: &'static [&'static str],
    refusal: &'static str,
    attempt: impl Fn(&Attacker) + 'static,
) -> Attack {
    Attack { name, attempt: Box::new(attempt), asked, refusal }
}

/// A full backup with one thing changed in it.
fn changed(name: &'static str, change: impl Fn(&mut Manifest) + 'static) -> Attack {
    attack(name, SHOW, FORGED, move |it| {
        let mut full = it.newest();
        change(&mut full);
        it.forge_full(&full, Sign::OurSignatureOfIt);
    })
}

fn later(full: &Manifest, by: SignedDuration) -> FullName {
    FullName::new(full.about.name.taken() + by, full.about.name.revision() + 10)
}

fn attacks() -> Vec<Attack> {
    let second = SignedDuration::from_secs(1);
    let year = SignedDuration::from_hours(24 * 365);
    vec![
        attack("the newest without its signature", RESTORE, UNSIGNED, |it| it.forge_full(&it.newest(), Sign::Nothing)),
        attack("the newest, signed with another key", RESTORE, OTHER, |it| {
            it.forge_full(&it.newest(), Sign::WithForeignKey);
        }),
        attack("a foreign signature under our key", RESTORE, FORGED, |it| {
            it.forge_full(&it.newest(), Sign::ForeignSignatureUnderOurKey);
        }),
        attack("the signature of another backup", RESTORE, FORGED, |it| {
            it.forge_full(&it.newest(), Sign::OurSignatureOfAnother);
        }),
        attack("a drill of what is not signed", &["drill"], UNSIGNED, |it| it.forge_full(&it.newest(), Sign::Nothing)),
        attack("a drill of a forged one", &["drill"], OTHER, |it| it.forge_full(&it.newest(), Sign::WithForeignKey)),
        attack("verified though not signed", &["backup", "verify", "--all"], UNSIGNED, |it| {
            it.forge_full(&it.newest(), Sign::Nothing);
        }),
        attack("verified though forged", &["backup", "verify", "--all"], OTHER, |it| {
            it.forge_full(&it.newest(), Sign::WithForeignKey);
        }),
        attack("shown though not signed", &["backup", "show"], "cannot be verified", |it| {
            it.forge_full(&it.newest(), Sign::Nothing);
        }),
        attack("copied though not signed", &["backup", "copy", "--to", "copy"], "cannot be verified", |it| {
            it.forge_full(&it.newest(), Sign::Nothing);
        }),
        attack("forged, with all trusted", &["restore", "--show", "--trust-unsigned"], FORGED, |it| {
            let mut full = it.newest();
            full.hashed.keys += 1;
            it.forge_full(&full, Sign::OurSignatureOfIt);
            std::fs::remove_dir_all(it.path(&it.layout.full(it.fulls[0].about.name))).expect("gone");
        }),
        changed("another number of keys", |full| full.hashed.keys += 1),
        changed("another hash of the keys", |full| full.hashed.hash ^= 1),
        changed("another snapshot", |full| full.snapshot.sha256 = "0".repeat(64)),
        changed("a larger snapshot", |full| full.snapshot.bytes = u64::MAX),
        changed("another object", |full| full.object.sha256 = "0".repeat(64)),
        changed("said to be encrypted", |full| full.coding = Coding { zstd: true, age: true }),
        changed("of another history", |full| full.about.cluster_id = ClusterId(66)),
        changed("with other histories", |full| full.about.histories.push(History::first(ClusterId(66)))),
        changed("without histories", |full| full.about.histories.clear()),
        changed("with more in it than there is", |full| full.about.upto = Some(i64::MAX)),
        changed("of another time", |full| full.about.begun += SignedDuration::from_secs(3600)),
        changed("of another fleet", |full| full.about.fleet_id = "other".to_owned()),
        changed("of another cluster", |full| full.about.cluster = Name::fixed("other")),
        attack("an older one under a newer name", SHOW, "cannot be verified", move |it| {
            let text = std::fs::read(it.path(&it.layout.manifest(it.fulls[0].about.name))).expect("a manifest");
            it.put(&it.layout.manifest(later(&it.newest(), second)), text);
        }),
        attack("a newer, forged one", SHOW, "cannot be verified", move |it| {
            let mut full = it.newest();
            full.about.name = later(&full, second);
            it.forge_full(&full, Sign::WithForeignKey);
        }),
        attack("junk that looks newer", SHOW, "cannot be verified", move |it| {
            it.put(&it.layout.manifest(later(&it.newest(), second)), "junk");
        }),
        attack("a manifest without end", SHOW, "cannot be verified", move |it| {
            it.put(&it.layout.manifest(later(&it.newest(), second)), vec![b'{'; 2 << 20]);
        }),
        attack("a manifest of no version", SHOW, "cannot be verified", move |it| {
            it.put(&it.layout.manifest(later(&it.newest(), second)), "{\"format\": 99}");
        }),
        attack(
            "a forged one by its name",
            &["restore", "--show", "--backup", "20260101T000000Z-0000000000000000001"],
            OTHER,
            |it| {
                let mut full = it.newest();
                full.about.name = "20260101T000000Z-0000000000000000001".parse().expect("a name");
                it.forge_full(&full, Sign::WithForeignKey);
            },
        ),
        attack("another object in its place", RESTORE, "damaged", |it| {
            let (older, newest) = (&it.fulls[0], it.newest());
            let bytes = std::fs::read(it.path(&it.layout.snapshot(older.about.name, older.coding))).expect("bytes");
            it.put(&it.layout.snapshot(newest.about.name, newest.coding), [bytes, b"more".to_vec()].concat());
        }),
        attack("an object that expands without end", RESTORE, "damaged", |it| {
            let bomb = bomb(1 << 30);
            it.put(&it.layout.snapshot(it.newest().about.name, it.newest().coding), bomb);
        }),
        attack("a bomb of the right size", &["backup", "verify"], "damaged", |it| {
            let mut bomb = bomb(64 << 20);
            bomb.resize(usize::try_from(it.newest().object.bytes).expect("small"), 0);
            it.put(&it.layout.snapshot(it.newest().about.name, it.newest().coding), bomb);
        }),
        attack("a batch without its signature", SHOW, UNSIGNED, |it| it.forge_batch(&it.batches[1], Sign::Nothing)),
        attack("a batch with another key", SHOW, OTHER, |it| it.forge_batch(&it.batches[1], Sign::WithForeignKey)),
        attack("a batch with a foreign signature under our key", SHOW, FORGED, |it| {
            it.forge_batch(&it.batches[0], Sign::ForeignSignatureUnderOurKey);
        }),
        attack("a batch with the signature of another", SHOW, FORGED, |it| {
            it.forge_batch(&it.batches[0], Sign::OurSignatureOfAnother);
        }),
        attack("a batch that goes further", SHOW, FORGED, |it| {
            it.forge_batch(&Batch { to: i64::MAX, ..it.batches[0].clone() }, Sign::OurSignatureOfIt);
        }),
        attack("a batch of another time", SHOW, FORGED, |it| {
            it.forge_batch(&Batch { until: Timestamp::UNIX_EPOCH, ..it.batches[0].clone() }, Sign::OurSignatureOfIt);
        }),
        attack("a batch after the last", SHOW, OTHER, |it| {
            let last = it.batches.last().expect("a batch");
            let after = last.check().expect("a check");
            let more = Batch { number: last.number + 1, after, from: last.to, to: last.to + 1, ..last.clone() };
            it.forge_batch(&more, Sign::WithForeignKey);
        }),
        attack("a batch under another number", SHOW, "that of another one", |it| {
            let text = std::fs::read(it.path(&it.layout.batch_manifest(it.batches[0].name()))).expect("a manifest");
            let name = BatchName { number: 7777, ..it.batches[0].name() };
            it.put(&it.layout.batch_manifest(name), text);
        }),
        attack("a batch that is gone", SHOW, "follows one that is not there", |it| {
            std::fs::remove_file(it.path(&it.layout.batch_manifest(it.batches[0].name()))).expect("gone");
        }),
        attack("a batch that expands without end", RESTORE, "none of raftsman's", |it| {
            let batch = &it.batches[0];
            it.put(&it.layout.batch(batch.name(), batch.coding), bomb(1 << 30));
        }),
        attack("names of the future push nothing out", &["backup", "prune", "--show"], "ignored", move |it| {
            for number in 1..=6 {
                it.put(&it.layout.manifest(later(&it.newest(), year * number)), "junk");
            }
        }),
        attack("a drill that never was", &["drill", "--history"], "", move |it| {
            let (at, backup) = (Timestamp::now() + year, it.newest().about.name);
            let drill = Drill {
                format: Drill::FORMAT,
                backup,
                at,
                machine: Name::fixed("main-1"),
                version: EtcdVersion::parse(VERSION).expect("a version"),
                batches: 0,
                revision: 1,
                keys: 1,
                took_ms: 1,
                behind: None,
                behind_ms: None,
            };
            it.put(&it.layout.drill(at, backup), it.own.text(&drill).expect("a text"));
        }),
    ]
}

/// So many zero bytes, in a few of zstd.
fn bomb(bytes: u64) -> Vec<u8> {
    let mut object = Vec::new();
    let nothing = std::io::Read::take(std::io::repeat(0), bytes);
    let seals = raftsman_backup::Seals { zstd: true, recipients: Vec::new() };
    raftsman_backup::seal::seal(nothing, &mut object, &seals).expect("a bomb");
    object
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-aT").arg(from).arg(to).status().expect("cp");
    assert!(copied.success());
}

/// A cluster of one member with two full backups and some batches, in a store that only its attacker writes to from now on.
fn attacked(shelf: &Path) -> (Lab, PathBuf, PathBuf) {
    let store = shelf.join("store");
    let schedule = "  every: 1h\n  changes_every: 1s\n";
    let lab = Lab::with_backups(1, VERSION, &store, schedule);
    eventually("the first backup is made", || lab.cluster_status()["backups"]["full"].is_string().then_some(()));
    lab.etcdctl(&["put", "key", "before"]).ok();
    let made = lab.run(&["backup", "now", "--json"]).ok().json_lines();
    assert!(made.last().is_some_and(|line| line["event"] == "backed_up"), "{made:?}");
    // An agent that gets a new schedule follows the newest full backup.
    lab.write_file(&lab.file().replace("every: 1h", "every: 2h"));
    lab.apply();
    for number in 0..3 {
        lab.etcdctl(&["put", &format!("key-{number}"), "value"]).ok();
        lab.covered(Timestamp::now());
    }
    lab.write_file(&lab.file().replace("  every: 2h\n  changes_every: 1s\n", ""));
    lab.apply();
    let good = shelf.join("good");
    copy(&store, &good);
    (lab, store, good)
}

#[test]
fn nothing_of_an_attacker_is_taken_for_a_backup() {
    let shelf = tempfile::tempdir().expect("a directory");
    let (lab, store, good) = attacked(shelf.path());
    for path in below(&store) {
        let mode = std::fs::metadata(&path).expect("an object").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}: all data of the cluster is in it", path.display());
    }
    let attacker = Attacker::new(&store);
    assert!(attacker.fulls.len() == 2 && attacker.batches.len() >= 2, "{}", attacker.batches.len());
    lab.run(SHOW).ok();
    let etcd = lab.etcds();
    let all = attacks();
    for Attack { name, attempt, asked, refusal } in &all {
        attempt(&attacker);
        let said = lab.run(asked);
        let words = said.all();
        match *refusal {
            "ignored" => {
                assert!(said.code == 0 && words.matches("ignored: it cannot").count() == 6, "{name}: {words}");
                assert!(words.contains("nothing to remove"), "{name}: {words}");
            }
            "" => assert!(said.code == 0 && !words.contains("main-1"), "{name}: {words}"),
            refusal => {
                assert!(said.code != 0, "{name} was accepted: {words}");
                assert!(words.contains(refusal), "{name}: {words}");
            }
        }
        assert_eq!(lab.etcds(), etcd, "{name}: nothing was touched");
        std::fs::remove_dir_all(&store).expect("gone");
        copy(&good, &store);
    }
    println!("{} attacks", all.len());
    // Unsigned backups of earlier versions are restored when an operator asks for it, and signed ones always.
    attacker.forge_full(&attacker.newest(), Sign::Nothing);
    lab.run(&["restore", "--show", "--trust-unsigned"]).ok();
    copy(&good, &store);
    // Where encryption is required, a signed plain-text backup is rejected, too.
    let (file, key) = (lab.file(), age::x25519::Identity::generate().to_public());
    lab.write_file(&format!("{file}  encrypt_to: [{key}]\n"));
    for asked in [SHOW, &["drill"], &["backup", "verify"]] {
        let refused = lab.run(asked).failed().all();
        assert!(refused.contains("is not encrypted"), "{asked:?}: {refused}");
    }
    lab.write_file(&file);
    lab.run(RESTORE).ok();
    assert_eq!(lab.etcdctl(&["get", "key-2", "--print-value-only"]).ok().stdout.trim(), "value");
    lab.destroy();
}

/// Everything but the signature is made to fit.
#[test]
fn an_attacker_without_a_signing_key() {
    let seed = std::env::var("RAFTSMAN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(1));
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let shelf = tempfile::tempdir().expect("a directory");
    let (lab, store, good) = attacked(shelf.path());
    let attacker = Attacker::new(&store);
    let etcd = lab.etcds();
    let lies = if soak() { 100 } else { 8 };
    for number in 0..lies {
        let sign = *dice.pick(&SIGNS).expect("one");
        let what = match dice.one_in(2) {
            true => {
                let mut full = attacker.newest();
                match dice.below(5) {
                    0 => full.hashed.keys += 1,
                    1 => full.snapshot.bytes = dice.bits(),
                    2 => full.about.upto = Some(full.about.name.revision() + 1_000_000),
                    3 => full.about.histories = vec![History::first(full.about.cluster_id); 2],
                    _ => full.object.sha256 = format!("{:064x}", dice.bits()),
                }
                attacker.forge_full(&full, sign);
                "a full backup"
            }
            false => {
                let mut batch = dice.pick(&attacker.batches).expect("a batch").clone();
                match dice.below(4) {
                    0 => batch.until += SignedDuration::from_secs(1),
                    1 => batch.lines.bytes = dice.bits(),
                    2 => batch.cluster_id = ClusterId(dice.bits()),
                    _ => batch.object.sha256 = format!("{:064x}", dice.bits()),
                }
                attacker.forge_batch(&batch, sign);
                "a batch"
            }
        };
        let refused = lab.run(RESTORE);
        let words = refused.all();
        assert!(refused.code != 0, "seed {seed}, {number}: {what} with {sign:?} was restored: {words}");
        let why = [UNSIGNED, OTHER, FORGED, "cannot be verified"];
        assert!(why.iter().any(|why| words.contains(why)), "seed {seed}, {number}: {what} with {sign:?}: {words}");
        assert_eq!(lab.etcds(), etcd, "seed {seed}, {number}: nothing was touched");
        std::fs::remove_dir_all(&store).expect("gone");
        copy(&good, &store);
    }
    println!("{lies} lies");
    lab.destroy();
    let key: PublicKey =
        attacker.signature(&attacker.layout.manifest(attacker.newest().about.name)).key.parse().expect("ours");
    assert_ne!(key, attacker.own.public());
}
