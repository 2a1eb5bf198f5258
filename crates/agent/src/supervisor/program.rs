//! a program of the closed list → what the supervisor needs to know: its files, user, unit, arguments, environment,
//! listeners, and what must hold before it starts.
//!
//! A further program is a variant here and a module of its own beside `etcd`; the compiler lists the arms that are
//! missing.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use raftsman_core::render::{
    haproxy as rendered_haproxy, keepalived as rendered_keepalived, patroni as rendered_patroni,
};
use serde::{Deserialize, Serialize};

use crate::balancer::{haproxy, keepalived};
use crate::etcd;
use crate::etcd::prestart::PrestartError;
use crate::postgres;
use crate::root::Root;
use crate::supervisor::binaries::Binary;
use crate::supervisor::packages::Package;
use crate::supervisor::systemd;

/// The whole environment of a program: where it finds other programs.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Debian's Python, which runs Patroni.
pub const PYTHON: &str = "/usr/bin/python3";

/// A program that the agent supervises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// etcd.
    Etcd,
    /// HAProxy, in front of etcd or PostgreSQL.
    Haproxy,
    /// keepalived, for the virtual address of several HAProxys.
    Keepalived,
    /// Patroni, with the PostgreSQL that it runs.
    Patroni,
}

/// Where the binary of a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the operator: installed below the root in several versions, and run only if an admin pinned its bytes.
    Pinned(Binary),
    /// From Debian: one version, that of the package.
    Package(Package),
}

impl Program {
    /// All of them, each after those that it needs.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::Haproxy, Self::Keepalived, Self::Patroni];

    /// Its name in messages and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Haproxy => "HAProxy",
            Self::Keepalived => "keepalived",
            Self::Patroni => "Patroni",
        }
    }

    /// Its unit, where systemd runs it.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Etcd => systemd::ETCD_UNIT,
            Self::Haproxy => systemd::HAPROXY_UNIT,
            Self::Keepalived => systemd::KEEPALIVED_UNIT,
            Self::Patroni => systemd::PATRONI_UNIT,
        }
    }

    /// The user that it runs as, where systemd runs it; none for root.
    pub fn user(self) -> Option<&'static str> {
        match self {
            Self::Etcd => Some(systemd::ETCD_USER),
            Self::Haproxy => Some(systemd::HAPROXY_USER),
            Self::Keepalived => None,
            Self::Patroni => Some(systemd::POSTGRES_USER),
        }
    }

    /// Where the binary comes from that is started.
    pub fn source(self) -> Source {
        match self {
            Self::Etcd => Source::Pinned(Binary::Etcd),
            Self::Haproxy => {
                Source::Package(Package { name: rendered_haproxy::PACKAGE, program: rendered_haproxy::PROGRAM })
            }
            Self::Keepalived => {
                Source::Package(Package { name: rendered_keepalived::PACKAGE, program: rendered_keepalived::PROGRAM })
            }
            Self::Patroni => Source::Pinned(Binary::Patroni),
        }
    }

    /// Whether it can run without systemd.
    pub fn runs_as_child(self) -> bool {
        match self {
            Self::Etcd | Self::Haproxy | Self::Patroni => true,
            // It changes the addresses of the machine, which is this computer.
            Self::Keepalived => false,
        }
    }

    /// The program that it runs beside, and ends with.
    pub fn bound_to(self) -> Option<Self> {
        match self {
            Self::Etcd | Self::Haproxy | Self::Patroni => None,
            Self::Keepalived => Some(Self::Haproxy),
        }
    }

    /// Where its files are.
    pub fn files(self, root: &Root) -> Files {
        match self {
            Self::Etcd => Files { dir: root.etcd(), config: "etcd.yaml", log: "etcd.log" },
            Self::Haproxy => {
                Files { dir: root.path().join("haproxy"), config: rendered_haproxy::FILE, log: "haproxy.log" }
            }
            Self::Keepalived => {
                Files { dir: root.path().join("keepalived"), config: rendered_keepalived::FILE, log: "keepalived.log" }
            }
            Self::Patroni => Files { dir: postgres::dir(root), config: rendered_patroni::FILE, log: "patroni.log" },
        }
    }

    /// Directories that belong to its user: the agent may have made or filled them.
    pub fn writes(self, root: &Root) -> Vec<PathBuf> {
        match self {
            Self::Etcd => vec![root.data()],
            Self::Haproxy => vec![haproxy::run_dir(root)],
            Self::Keepalived => Vec::new(),
            Self::Patroni => vec![postgres::data::dir(root), root.path().join(rendered_patroni::RUN)],
        }
    }

    /// What it is started with.
    pub fn arguments(self, root: &Root) -> Vec<String> {
        match self {
            Self::Etcd => vec![self.known_by(root)],
            // A master that keeps listening while a reload replaces its worker; in the foreground.
            Self::Haproxy => ["-W", "-db", "-f"].map(str::to_owned).into_iter().chain([self.known_by(root)]).collect(),
            Self::Keepalived => vec!["--dont-fork".to_owned(), "--log-console".to_owned(), self.known_by(root)],
            // Arguments of the interpreter: nothing from its environment, no modules from elsewhere, no files written.
            Self::Patroni => {
                let start = self.files(root).current().join("start.py").display().to_string();
                ["-I", "-B"].map(str::to_owned).into_iter().chain([start, self.known_by(root)]).collect()
            }
        }
    }

    /// The argument that only the agent's own process of this program has.
    pub fn known_by(self, root: &Root) -> String {
        match self {
            Self::Etcd => format!("--config-file={}", self.files(root).config().display()),
            Self::Haproxy | Self::Patroni => self.files(root).config().display().to_string(),
            Self::Keepalived => format!("--use-file={}", self.files(root).config().display()),
        }
    }

    /// Its whole environment. etcd would read variables that begin with `ETCD_` as settings.
    pub fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Etcd | Self::Haproxy | Self::Keepalived => &[("PATH", PATH)],
            // It reads what the programs of PostgreSQL print.
            Self::Patroni => &[("PATH", PATH), ("LC_ALL", "C.UTF-8")],
        }
    }

    /// The addresses that it listens on with this configuration.
    pub fn listeners(self, config: &str, address: IpAddr) -> Vec<SocketAddr> {
        match self {
            Self::Etcd => etcd::listeners(config, address),
            Self::Haproxy => haproxy::listeners(config),
            // VRRP has no ports.
            Self::Keepalived => Vec::new(),
            Self::Patroni => postgres::lines::listeners(config),
        }
    }

    /// Those that must be free before it starts: a PostgreSQL that outlived its Patroni keeps its own, and is adopted.
    pub fn needs_free(self, root: &Root, config: &str, address: IpAddr) -> Vec<SocketAddr> {
        let mut needed = self.listeners(config, address);
        if self == Self::Patroni && postgres::running::postmaster(root).is_some() {
            let kept = postgres::lines::server(config);
            needed.retain(|address| Some(*address) != kept);
        }
        needed
    }

    /// The bytes that must be free on the machine's disk before it is started.
    pub fn least_free(self) -> u64 {
        match self {
            Self::Etcd => etcd::LEAST_FREE,
            // For the record of its start.
            Self::Haproxy | Self::Keepalived => 1 << 20,
            Self::Patroni => postgres::LEAST_FREE,
        }
    }

    /// The first line of a configuration that raftsman would not write, where the file's language runs programs.
    pub fn foreign_line(self, config: &str) -> Option<usize> {
        match self {
            Self::Etcd => None,
            Self::Haproxy => rendered_haproxy::foreign_line(config),
            Self::Keepalived => rendered_keepalived::foreign_line(config),
            Self::Patroni => rendered_patroni::foreign_line(config),
        }
    }

    /// Why it ended: the last message about it in its log.
    pub fn fatal(self, log: &[String]) -> Option<String> {
        match self {
            Self::Etcd => etcd::fatal(log),
            Self::Haproxy => haproxy::fatal(log),
            Self::Keepalived => keepalived::fatal(log),
            Self::Patroni => postgres::fatal(log),
        }
    }

    /// The part of its configuration file that was sent: without the section that the last start added.
    pub fn configured(self, file: &str) -> &str {
        match self {
            Self::Etcd => etcd::bootstrap::split(file).0,
            Self::Haproxy | Self::Keepalived | Self::Patroni => file,
        }
    }

    /// Its configuration file with another configuration: the section that the last start added stays.
    pub fn reconfigured(self, configured: &str, old_file: &str) -> String {
        match self {
            Self::Etcd => etcd::bootstrap::reconfigured(configured, old_file),
            Self::Haproxy | Self::Keepalived | Self::Patroni => configured.to_owned(),
        }
    }

    /// A configuration with what only the machine knows; none where it needs an interface that cannot be determined.
    pub fn placed(self, config: &str, address: IpAddr) -> Option<String> {
        match self {
            Self::Etcd | Self::Haproxy | Self::Patroni => Some(config.to_owned()),
            Self::Keepalived => keepalived::placed(config, address),
        }
    }

    /// Its record before its first start.
    pub fn unknown(self) -> Own {
        match self {
            Self::Etcd => Own::Etcd(etcd::prestart::Started::default()),
            Self::Haproxy | Self::Keepalived => Own::Package(Packaged {}),
            Self::Patroni => Own::Patroni(postgres::prestart::Started::default()),
        }
    }

    /// Its own part of its record.
    pub fn read_own(self, record: &str) -> Result<Own, serde_json::Error> {
        match self {
            Self::Etcd => serde_json::from_str(record).map(Own::Etcd),
            Self::Haproxy | Self::Keepalived => serde_json::from_str(record).map(Own::Package),
            Self::Patroni => serde_json::from_str(record).map(Own::Patroni),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the files of one program are.
#[derive(Clone, Debug)]
pub struct Files {
    dir: PathBuf,
    config: &'static str,
    log: &'static str,
}

impl Files {
    /// The directory that all of them are in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Installed versions, a directory each.
    pub fn versions(&self) -> PathBuf {
        self.dir.join("versions")
    }

    /// The link to the version that the next start uses.
    pub fn current(&self) -> PathBuf {
        self.dir.join("current")
    }

    /// Its configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join(self.config)
    }

    /// Its log, where it runs as a child.
    pub fn log(&self) -> PathBuf {
        self.dir.join(self.log)
    }

    /// What it was last asked to do, and its version and configuration at the last start.
    pub fn record(&self) -> PathBuf {
        self.dir.join("service.json")
    }
}

/// What a caller expects of a program's data before a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Of etcd's.
    Etcd(etcd::prestart::Expected),
    /// HAProxy has none.
    Haproxy,
    /// keepalived has none.
    Keepalived,
    /// Of PostgreSQL's.
    Patroni(postgres::prestart::Expected),
}

impl Expected {
    /// The program that is started.
    pub fn program(&self) -> Program {
        match self {
            Self::Etcd(_) => Program::Etcd,
            Self::Haproxy => Program::Haproxy,
            Self::Keepalived => Program::Keepalived,
            Self::Patroni(_) => Program::Patroni,
        }
    }

    /// All checks of the program itself that are possible before anything is changed. Returns the configuration file
    /// for this start, and the program's part of the record.
    pub fn check(&self, root: &Root, config: &str) -> Result<(String, Own), PrestartError> {
        match self {
            Self::Etcd(expected) => {
                etcd::prestart::check(root, config, expected).map(|(config, started)| (config, Own::Etcd(started)))
            }
            Self::Haproxy | Self::Keepalived => Ok((config.to_owned(), Own::Package(Packaged {}))),
            Self::Patroni(expected) => {
                let started = postgres::prestart::check(root, *expected)?;
                Ok((config.to_owned(), Own::Patroni(started)))
            }
        }
    }

    /// Whether a running process is what this start asks for.
    pub fn fits(&self, running: &Own) -> Result<(), PrestartError> {
        match (self, running) {
            (Self::Etcd(expected), Own::Etcd(started)) => etcd::prestart::fits(expected, started),
            (Self::Patroni(expected), Own::Patroni(started)) => Ok(postgres::prestart::fits(*expected, started)?),
            (Self::Haproxy | Self::Keepalived, _) | (Self::Etcd(_) | Self::Patroni(_), _) => Ok(()),
        }
    }
}

/// The part of the record that is specific to one program.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Own {
    /// Of etcd.
    Etcd(etcd::prestart::Started),
    /// Of a Debian package's program.
    Package(Packaged),
    /// Of Patroni.
    Patroni(postgres::prestart::Started),
}

/// Nothing: such a program has no data.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Packaged {}

impl Own {
    /// Whether the program may be restarted as it was; otherwise why not.
    pub fn resume(&self, root: &Root) -> Result<Resume, String> {
        match self {
            Self::Etcd(started) => etcd::prestart::resume(root, started).map(Resume::Etcd),
            Self::Package(_) => Ok(Resume::Package),
            Self::Patroni(started) => postgres::prestart::resume(root, started).map(|()| Resume::Patroni),
        }
    }

    /// The configuration file for a restart as it was.
    pub fn resumed(&mut self, resume: &Resume, config: &str) -> Result<String, PrestartError> {
        match (self, resume) {
            (Self::Etcd(started), Resume::Etcd(resume)) => etcd::prestart::resumed(started, resume, config),
            (Self::Etcd(_) | Self::Package(_) | Self::Patroni(_), _) => Ok(config.to_owned()),
        }
    }

    /// Records what the process reads from the disk when it starts.
    pub fn note_files(&mut self, root: &Root) -> Result<(), PrestartError> {
        match self {
            Self::Etcd(started) => started.note_files(root),
            Self::Package(_) => Ok(()),
            Self::Patroni(started) => Ok(started.note_files(root)?),
        }
    }

    /// Records what the process has taken up by a reload.
    pub fn note_reload(&mut self, root: &Root) -> Result<(), PrestartError> {
        match self {
            Self::Etcd(_) | Self::Package(_) => Ok(()),
            Self::Patroni(started) => Ok(started.note_reload(root)?),
        }
    }

    /// Whether the record still misses something that only shows while it runs.
    pub fn has_to_learn(&self) -> bool {
        match self {
            Self::Etcd(started) => started.ids.is_none(),
            Self::Package(_) => false,
            Self::Patroni(started) => started.system.is_none(),
        }
    }

    /// Learns it; whether there was something.
    pub fn learn(&mut self, root: &Root) -> bool {
        match self {
            Self::Etcd(started) => started.learn(root),
            Self::Package(_) => false,
            Self::Patroni(started) => started.learn(root),
        }
    }

    /// Its data was moved away.
    pub fn forget_data(&mut self) {
        match self {
            Self::Etcd(started) => started.ids = None,
            Self::Package(_) => {}
            Self::Patroni(started) => started.system = None,
        }
    }
}

/// How a program is restarted as it was.
#[derive(Debug)]
pub enum Resume {
    /// etcd.
    Etcd(etcd::prestart::Resume),
    /// A Debian package's program.
    Package,
    /// Patroni.
    Patroni,
}
