//! A version of raftsman, of the agents and of the state → what becomes of every verb.
//!
//! N is this version. N−1 are programs that were built from an earlier commit, and what they made. There is no N+1 yet:
//! an agent is newer for a raftsman that ships an older one, and a state of the next format says so.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lab::agents::pretender;
use crate::lab::{Lab, Output, binary};

/// Older than any agent that there is.
const OLDER: &str = "0.0.1";
/// The format of the state that this version writes; that of the version before is one less.
pub const FORMAT: u32 = 3;

/// Which version something is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The one before.
    Before,
    /// This one.
    This,
    /// The one after.
    Next,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "N−1",
            Self::This => "N",
            Self::Next => "N+1",
        })
    }
}

/// Programs of the version before.
#[derive(Debug, Clone)]
pub struct Before {
    /// The directory with `raftsman` and `raftsman-agent`.
    pub dir: PathBuf,
}

impl Before {
    fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// What meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// The version of the command.
    pub raftsman: Version,
    /// The version of every machine's agent.
    pub agent: Version,
    /// The version of the state.
    pub state: Version,
}

impl Situation {
    /// All that can meet: this raftsman with everything, and the one before with what this one left.
    pub fn all() -> Vec<Self> {
        use Version::{Before, Next, This};
        let ours = [This, Before, Next]
            .into_iter()
            .flat_map(|state| [This, Before, Next].into_iter().map(move |agent| Self { raftsman: This, agent, state }));
        let of_before = [(This, Before), (This, This)];
        ours.chain(of_before.map(|(agent, state)| Self { raftsman: Before, agent, state })).collect()
    }

    /// A cluster with a backup, made so that the situation is given.
    ///
    /// # Panics
    /// When it needs programs of before, and there are none.
    pub fn make(self, members: usize, before: Option<&Before>) -> Lab {
        let mut lab = Lab::cluster(members, "3.6.15", &["quota: 2GiB"]);
        let store = lab.path().join("backups");
        std::fs::create_dir_all(&store).expect("a directory");
        lab.write_file(&format!("{}backups:\n  store: {{ directory: {store:?} }}\n", lab.file()));
        let of_before = |name: &str| before.expect("programs of the version before").program(name);
        // An older agent is made by an older raftsman; a state of today follows by an apply of today.
        if self.agent == Version::Before || (self.state == Version::Before && before.is_some()) {
            lab.use_raftsman(Some(of_before("raftsman")));
        }
        lab.use_agent(if self.agent == Version::Before {
            of_before("raftsman-agent")
        } else {
            binary("raftsman-agent")
        });
        lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
        lab.run(&["backup", "now"]).ok();
        // A backup is named by its second and its revision, and the verbs make another one of the same revision.
        std::thread::sleep(Duration::from_secs(1));
        if self.state != Version::Before {
            lab.use_raftsman(None);
            lab.use_agent(binary("raftsman-agent"));
            lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
        }
        match self.raftsman {
            Version::Before => {
                lab.use_raftsman(Some(of_before("raftsman")));
                lab.use_agent(of_before("raftsman-agent"));
            }
            Version::This | Version::Next => {
                lab.use_raftsman(None);
                lab.use_agent(binary("raftsman-agent"));
            }
        }
        if self.agent == Version::Next {
            lab.ship("older", &pretender(OLDER, "exit 1"));
        }
        lab
    }

    /// Runs a verb in this situation.
    pub fn outcome(self, lab: &Lab, verb: &Verb) -> Outcome {
        let format = match self.state {
            Version::Before => FORMAT - 1,
            Version::This => FORMAT,
            Version::Next => FORMAT + 1,
        };
        set_format(lab, format);
        (verb.prepare)(lab);
        Outcome::of(verb, lab.path(), &lab.run(verb.arguments))
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.raftsman, self.agent, self.state)
    }
}

/// The verb before may have migrated the state.
fn set_format(lab: &Lab, format: u32) {
    let path = lab.path().join(".raftsman/fleet.json");
    let text = std::fs::read_to_string(&path).expect("a state");
    let is = |known: &u32| text.contains(&format!("\"format\": {known}"));
    let found = [FORMAT - 1, FORMAT, FORMAT + 1].into_iter().find(is).expect("a format");
    std::fs::write(&path, text.replace(&format!("\"format\": {found}"), &format!("\"format\": {format}")))
        .expect("written");
}

/// A verb of the command line, as it is tried.
pub struct Verb {
    /// Its name in the table.
    pub name: &'static str,
    /// What is run.
    pub arguments: &'static [&'static str],
    /// Whether it only reads.
    pub reads: bool,
    prepare: fn(&Lab),
}

const fn reads(name: &'static str, arguments: &'static [&'static str]) -> Verb {
    Verb { name, arguments, reads: true, prepare: |_| {} }
}

const fn changes(name: &'static str, arguments: &'static [&'static str]) -> Verb {
    Verb { name, arguments, reads: false, prepare: |_| {} }
}

/// The SHA-256 of a key that no client has.
const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Every verb that meets an agent or the state; those that take most away come last.
pub const VERBS: &[Verb] = &[
    reads("check", &["check"]),
    reads("plan", &["plan"]),
    reads("status", &["status"]),
    reads("version", &["version"]),
    reads("versions", &["versions"]),
    reads("journal", &["journal"]),
    reads("env", &["env"]),
    reads("logs", &["logs", "main-1"]),
    reads("logs --agent", &["logs", "main-1", "--agent"]),
    reads("cert list", &["cert", "list"]),
    reads("state check", &["state", "check"]),
    reads("verify", &["verify"]),
    reads("preflight", &["preflight"]),
    reads("backup list", &["backup", "list"]),
    reads("backup show", &["backup", "show"]),
    reads("backup verify", &["backup", "verify"]),
    reads("backup key", &["backup", "key"]),
    reads("backup copy", &["backup", "copy", "--to", "copies"]),
    changes("apply, nothing to do", &["apply", "--yes", "--timeout", "20s"]),
    Verb {
        name: "apply, a changed setting",
        arguments: &["apply", "--yes", "--timeout", "20s"],
        reads: false,
        prepare: |lab| lab.write_file(&lab.file().replace("quota: 2GiB", "quota: 3GiB")),
    },
    changes("backup now", &["backup", "now"]),
    changes("backup prune", &["backup", "prune"]),
    changes("drill", &["drill"]),
    changes("preflight --save", &["preflight", "--save"]),
    changes("state repair", &["state", "repair", "--yes"]),
    changes("cert issue", &["cert", "issue", "app", "--out", "issued"]),
    changes("cert issue --agent-role", &["cert", "issue", "ops", "--agent-role", "reader", "--out", "issued-agents"]),
    changes("cert revoke", &["cert", "revoke", KEY, "--timeout", "20s"]),
    changes("cert rotate", &["cert", "rotate", "peers", "--yes", "--timeout", "20s"]),
    changes("move-leader", &["move-leader", "main-2"]),
    changes("compact", &["compact", "--yes"]),
    changes("defrag", &["defrag", "--all"]),
    changes("restore", &["restore", "--yes", "--timeout", "20s"]),
    changes("replace", &["replace", "main-3", "--yes", "--timeout", "20s"]),
    Verb {
        name: "recover --show",
        arguments: &["recover", "--show"],
        reads: true,
        prepare: |lab| ["main-2", "main-3"].into_iter().for_each(|machine| lab.demolish(machine)),
    },
    changes("recover", &["recover", "--yes", "--timeout", "20s"]),
    changes("destroy", &["destroy", "--yes"]),
];

/// What came of a verb.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it does, and had this to say of versions.
    Works(Option<String>),
    /// It did not, and said this.
    Refused(String),
    /// That version has no such verb.
    Unknown,
}

impl Outcome {
    fn of(verb: &Verb, lab: &Path, output: &Output) -> Self {
        // Which of the machines is named first differs from run to run.
        let words = |line: &str| {
            let line = line.trim().replace(&lab.display().to_string(), ".");
            ["main-1", "main-2", "main-3"].iter().fold(line, |line, machine| line.replace(machine, "MACHINE"))
        };
        let all = output.all();
        let said = |starts: &[&str]| all.lines().find(|line| starts.iter().any(|start| line.trim().starts_with(start)));
        if all.contains("unrecognized subcommand") {
            return Self::Unknown;
        }
        if output.code == 0 {
            let of_versions = all.lines().find(|line| line.contains(": its agent")).map(words);
            return Self::Works(of_versions);
        }
        let last = || output.stderr.lines().rfind(|line| !line.trim().is_empty());
        let stopped = || said(&["blocked: "]).or_else(|| said(&["stopped: "]));
        let why = said(&["error"]).or_else(stopped).or_else(last).unwrap_or_default();
        // What reads shows what it found, and exits with what it found wrong.
        if verb.reads && !output.stdout.trim().is_empty() && said(&["error"]).is_none() {
            Self::Works(Some(words(why)))
        } else {
            Self::Refused(words(why))
        }
    }
}
