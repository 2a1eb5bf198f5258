//! Refusals, one after another → each with its reason, its next step, and proof that nothing was changed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use crate::lab::{Lab, Output, etcdctl};

/// Written by every run that tries, or by processes that live: no change of what people rely on.
const NOISE: [&str; 4] = [".raftsman/lock", ".raftsman/locks", ".raftsman/generation", ".raftsman/journal.jsonl"];
/// On a machine: the lock, logs, and the agent's count of the times that it started etcd again.
const MACHINE_NOISE: [&str; 4] = ["agent.lock", "agent.log", "etcd/etcd.log", "etcd/service.json"];

/// All that a refusal must leave as it was.
#[derive(Debug, PartialEq, Eq)]
pub struct Facts {
    /// Every file and directory: its mode, its size and a hash of its bytes.
    pub files: BTreeMap<String, String>,
    /// Every process of the lab.
    pub processes: Vec<(u32, String)>,
    /// What etcd says of its members and its revision.
    pub etcd: Option<String>,
}

/// How a cluster's etcd is asked, whatever becomes of the file: what `raftsman env` said when all was well.
#[derive(Debug, Clone)]
pub struct Window(String);

impl Window {
    /// Opens it.
    #[track_caller]
    pub fn of(lab: &Lab) -> Self {
        Self(lab.run(&["env"]).ok().stdout)
    }

    /// The members and the revision, asked of whichever member answers.
    pub fn look(&self) -> String {
        let ask = |arguments: &str| {
            // A member that is down is no reason to fail: the first answer counts.
            let script = format!(
                "{}\nfor e in $(echo $ETCDCTL_ENDPOINTS | tr , ' '); do ETCDCTL_ENDPOINTS=$e timeout 5 {} {arguments} 2>/dev/null && exit; done",
                self.0,
                etcdctl().display()
            );
            let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let status: serde_json::Value = serde_json::from_str(&ask("get nothing -w json")).unwrap_or_default();
        format!("{}revision {}", ask("member list"), status["header"]["revision"])
    }
}

impl Facts {
    /// Looks at everything.
    pub fn of(lab: &Lab, window: Option<&Window>) -> Self {
        let processes = lab.processes();
        let mut files = BTreeMap::new();
        walk(lab.path(), lab.path(), &processes, &mut files);
        Self { files, processes, etcd: window.map(Window::look) }
    }
}

fn walk(root: &Path, dir: &Path, processes: &[(u32, String)], files: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
        let Ok(metadata) = path.symlink_metadata() else { continue };
        let noise = NOISE.contains(&name.as_str()) || MACHINE_NOISE.iter().any(|end| path.ends_with(end));
        // A running etcd writes its data; then etcd itself is asked whether anything changed.
        let lives = path.ends_with("etcd/data")
            && processes.iter().any(|(_, line)| {
                line.contains("--config-file=")
                    && path.parent().is_some_and(|etcd| line.contains(&*etcd.to_string_lossy()))
            });
        if noise || lives {
            continue;
        }
        // The history follows the ledger.
        if name == ".raftsman/history" {
            continue;
        }
        if metadata.is_dir() {
            files.insert(name, format!("{:o}", metadata.mode()));
            walk(root, &path, processes, files);
            continue;
        }
        if name.starts_with(".raftsman/clusters/") {
            // The state records since when a member is down, also in a refused run.
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let mut kept: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let mut ledger = kept["ledger"].take();
            ledger.as_object_mut().map(|ledger| ledger.remove("down_since"));
            files.insert(name, format!("{:o} {ledger}", metadata.mode()));
            continue;
        }
        let what = if metadata.is_symlink() {
            format!("{:?}", std::fs::read_link(&path))
        } else if metadata.len() > 4 << 20 {
            // Binaries and write-ahead logs: reading them takes longer than the test.
            format!("inode {} of {}", metadata.ino(), metadata.mtime_nsec())
        } else {
            let mut hasher = DefaultHasher::new();
            std::fs::read(&path).unwrap_or_default().hash(&mut hasher);
            format!("{:x}", hasher.finish())
        };
        files.insert(name, format!("{:o} {} {what}", metadata.mode(), metadata.len()));
    }
}

/// Panics with what changed, if anything did.
#[track_caller]
pub fn assert_same(what: &str, before: &Facts, after: &Facts) {
    let names = before.files.keys().chain(after.files.keys());
    let changed: Vec<_> = names
        .filter(|name| before.files.get(*name) != after.files.get(*name))
        .map(|name| format!("{name}: {:?} became {:?}", before.files.get(name), after.files.get(name)))
        .collect();
    assert!(changed.is_empty(), "{what}: files changed:\n{}", changed.join("\n"));
    assert_eq!(before.processes, after.processes, "{what}: processes changed");
    assert_eq!(before.etcd, after.etcd, "{what}: etcd changed");
}

/// The refusals of one test: what people read, for a snapshot.
#[derive(Debug, Default)]
pub struct Story {
    text: String,
    count: usize,
    restless: Option<String>,
}

impl Story {
    /// From now on the agent of this machine starts etcd again and again, in vain: that is none of raftsman's changes.
    pub fn restless(&mut self, machine: Option<&str>) {
        self.restless = machine.map(|name| format!(".raftsman/machines/{name}/etcd/"));
    }

    fn facts(&self, lab: &Lab, window: Option<&Window>) -> Facts {
        let mut facts = Facts::of(lab, window);
        if let Some(etcd) = &self.restless {
            facts.files.retain(|name, _| !name.starts_with(&format!("{etcd}data")));
            facts.processes.retain(|(_, line)| !line.contains(&format!("{etcd}etcd.yaml")));
        }
        facts
    }

    /// Runs a command that must be refused, for this reason and with this advice, and must change nothing.
    #[track_caller]
    pub fn refuse(&mut self, what: &str, lab: &Lab, window: Option<&Window>, arguments: &[&str], says: &[&str]) {
        self.refuse_run(what, lab, window, || lab.run(arguments), says);
    }

    /// The same for anything that is run.
    #[track_caller]
    pub fn refuse_run(
        &mut self,
        what: &str,
        lab: &Lab,
        window: Option<&Window>,
        run: impl FnOnce() -> Output,
        says: &[&str],
    ) {
        let before = self.facts(lab, window);
        let output = run();
        let after = self.facts(lab, window);
        assert_ne!(output.code, 0, "{what}: not refused\n{}", output.all());
        assert_same(what, &before, &after);
        self.describe(what, &output.all(), says);
    }

    /// A refusal that was seen elsewhere.
    #[track_caller]
    pub fn describe(&mut self, what: &str, text: &str, says: &[&str]) {
        for part in says {
            assert!(text.contains(part), "{what}: it does not say `{part}`:\n{text}");
        }
        assert!(!text.contains("panicked"), "{what}:\n{text}");
        assert!(!text.contains('\u{1b}'), "{what}: escape codes in a pipe\n{text}");
        self.count += 1;
        self.text.push_str(&format!("# {what}\n{}\n\n", the_refusal(text).trim_end()));
    }

    /// Holds all of them, and there must be so many, against what was accepted. `INSTA_UPDATE=always` accepts new words.
    #[track_caller]
    pub fn snapshot(&self, name: &str, at_least: usize) {
        assert!(self.count >= at_least, "only {} situations", self.count);
        insta::with_settings!({ filters => FILTERS, snapshot_path => "../tests/local/snapshots/refusals", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, &self.text);
        });
    }
}

/// The refusal without the plan that comes before it, whose order depends on the leader, and without progress lines,
/// whose order depends on timing. Plans have snapshots of their own.
fn the_refusal(text: &str) -> String {
    let summary = text.find(" write pause expected").map(|to| to + text[to..].find('\n').unwrap_or(0));
    // Where something is missing that `apply` needs, that is part of the refusal.
    let end = text.find("\n\nblocked: ").or(summary);
    let text = match (text.find("\n  1  "), end) {
        (Some(from), Some(to)) if from < to => format!("{}\n  …{}", &text[..from], &text[to..]),
        _ => text.to_owned(),
    };
    text.lines().filter(|line| !line.starts_with("main: ")).map(|line| format!("{line}\n")).collect()
}

/// What differs from run to run, and what stands for it in snapshots.
pub const FILTERS: [(&str, &str); 21] = [
    (r"/[^ \n`']*/raftsman-lab-[A-Za-z0-9]+", "<lab>"),
    (r"/[^ \n]*/release/", "<bin>/"),
    (r"/opt/lab/etcd|/[^ \n]*/target/lab/etcd", "<etcd>"),
    (r"\b127\.0\.\d+\.0/24", "127.0.N.0/24"),
    (r"\b127\.0\.\d+\.(\d+)\b", "127.0.N.$1"),
    (r"\b[0-9a-f]{32,64}\b", "<id>"),
    (r"\b[0-9a-f]{15,16}\b", "<cluster>"),
    (r"age1[0-9a-z]{50,}", "<recipient>"),
    (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "<time>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "<time>"),
    (r"\(pid \d+\)", "(pid N)"),
    (r"process \d+", "process N"),
    (r"\d+ ms", "N ms"),
    (r"[a-z0-9_.-]+@[A-Za-z0-9_.-]+ is running", "<user> is running"),
    (r"generation \d+ is older than \d+", "generation N is older than M"),
    (r"write \d+ into its file", "write M into its file"),
    (r"\d+ MiB free", "N MiB free"),
    (r"machines/main-\d is a machine", "machines/main-N is a machine"),
    (r"\blocal-[0-9a-f]+", "<test>"),
    (r"ended \d+ times", "ended N times"),
    (r"(?m)uid \d+$|uid <user>", "<user>"),
];
