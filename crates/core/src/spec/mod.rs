//! `raftsman.yaml` as text → a checked [`Spec`], or everything that is wrong with it and where.

pub mod backups;
pub mod balancers;
mod check;
mod decode;
mod diagnostic;
mod document;
pub mod explain;
mod fault;
pub mod incus;
pub mod libvirt;
pub mod machines;
pub mod maintenance;
pub mod overrides;
pub mod postgres;
mod secrecy;
mod shape;
pub mod subnet;
pub mod timing;
pub mod types;
pub mod units;
pub mod users;
mod values;
pub mod zones;

pub use backups::*;
pub use balancers::*;
pub use check::PublicKeys;
pub(crate) use check::{ignored_by, parameter_allowed};
pub use diagnostic::{Diagnostic, Path, Segment, Severity};
pub use incus::*;
pub use libvirt::{Acceleration, Cloning, Firmware, Interface, Libvirt, Link};
pub use machines::*;
pub use maintenance::{Day, Defragmentation, Maintenance, Percent, TimeOfDay, Window};
pub use overrides::{ClusterIncus, ClusterLibvirt, ClusterLogs, ClusterMachines, MemberMachine};
pub use postgres::{
    DcsOf, ExternalEtcd, PatroniVersion, PostgresCluster, PostgresVersion, SyncMode, Synchronous, Watchdog,
    WatchdogMode,
};
pub use shape::Shape;
pub use subnet::Subnet;
pub use timing::Timing;
pub use types::*;
pub use units::{ByteSize, Duration, EtcdVersion, Name, UnitError};
pub use users::{KeyRange, KeySpan, Keys, Level, Permission, Roles, User, Users};
pub use zones::{Zone, ZoneIncus, ZoneLibvirt};

use std::collections::BTreeMap;

use indexmap::IndexMap;

use decode::section;
pub use document::LARGEST as LARGEST_FILE;
use document::{Entry, Kind, Node, Span};
use fault::nearest;
use units::quoted;

/// As many errors, and as many warnings, are listed; more would hide the first ones.
const LISTED: usize = 50;

/// What came of reading a file.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The file's meaning. There is none while there are errors.
    pub spec: Option<Spec>,
    /// The file's meaning where it is refused only for what this version does not carry out yet: for the planner's tests.
    pub later: Option<Spec>,
    /// What is wrong or questionable, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
    /// How long writes of each PostgreSQL cluster stop, where its timers could be read and are safe. It is there beside
    /// errors, too.
    pub timings: IndexMap<Name, Timing>,
    /// Secrets that stand in the text itself: never shown.
    masks: Vec<Span>,
}

impl Reading {
    /// How many errors there are.
    pub fn errors(&self) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count()
    }

    /// How many warnings there are.
    pub fn warnings(&self) -> usize {
        self.diagnostics.len() - self.errors()
    }

    /// The same without its warnings.
    #[must_use]
    pub fn errors_only(mut self) -> Self {
        self.diagnostics.retain(Diagnostic::is_error);
        self
    }

    /// All diagnostics as text, each with the line of the file it speaks of. Empty if there are none.
    ///
    /// The text must be the one that was read. Secrets in it are masked.
    pub fn render(&self, file_name: &str, text: &str, colour: bool) -> String {
        diagnostic::render(&self.diagnostics, &self.masks, file_name, text, colour)
    }
}

/// Reads a file. Never fails: what is wrong is in the diagnostics, all of it at once.
pub fn read(text: &str) -> Reading {
    read_with_keys(text, &|_| None)
}

/// Reads a file, and compares the public keys of certificates that it names: two files may hold one key.
pub fn read_with_keys(text: &str, keys: PublicKeys<'_>) -> Reading {
    let (root, mut diagnostics) = document::load(text);
    let mut timings = IndexMap::new();
    let (spec, masks) = match root {
        Some(mut root) => {
            let mut tainted = Vec::new();
            let spec = decode_file(&mut root, &mut diagnostics, &mut tainted);
            if let Some(spec) = &spec {
                timings = check::timings(spec, &tainted);
                diagnostics.extend(check::check(spec, &root, &tainted, keys, LISTED));
            }
            (spec, if diagnostics.is_empty() { Vec::new() } else { secrecy::places(&root, text) })
        }
        None if diagnostics.is_empty() => {
            diagnostics.push(empty());
            (None, Vec::new())
        }
        None => (None, secrecy::places_in_text(text)),
    };
    let wrong = |diagnostic: &Diagnostic| diagnostic.is_error() && diagnostic.code != check::LATER;
    let right = spec.filter(|_| !diagnostics.iter().any(wrong));
    let (spec, later) = if diagnostics.iter().any(Diagnostic::is_error) { (None, right) } else { (right, None) };
    Reading { spec, later, diagnostics: finish(diagnostics, text), timings, masks }
}

/// The line, from 1, on which the value of these keys stands; nothing where it is not written.
pub fn line_of(text: &str, path: &Path) -> Option<usize> {
    let (root, _) = document::load(text);
    match root?.locate(path, true) {
        (span, true) => Some(diagnostic::Lines::new(text).position(span.start).0),
        (_, false) => None,
    }
}

/// The scalars of any YAML mapping, such as etcd's configuration file: nested keys are joined by dots, lists by commas.
pub fn scalars(text: &str) -> Option<BTreeMap<String, String>> {
    fn walk(prefix: &str, node: &Node, found: &mut BTreeMap<String, String>) {
        match &node.kind {
            Kind::Scalar { text, .. } => drop(found.insert(prefix.to_owned(), text.clone())),
            Kind::List(items) => {
                let text = |item: &Node| match &item.kind {
                    Kind::Scalar { text, .. } => text.clone(),
                    Kind::List(_) | Kind::Map(_) => String::new(),
                };
                found.insert(prefix.to_owned(), items.iter().map(text).collect::<Vec<_>>().join(","));
            }
            Kind::Map(map) => {
                for entry in &map.entries {
                    let dot = if prefix.is_empty() { "" } else { "." };
                    walk(&format!("{prefix}{dot}{}", entry.key), &entry.value, found);
                }
            }
        }
    }
    let (root, diagnostics) = document::load(text);
    let root =
        root.filter(|root| matches!(root.kind, Kind::Map(_)) && !diagnostics.iter().any(Diagnostic::is_error))?;
    let mut found = BTreeMap::new();
    walk("", &root, &mut found);
    Some(found)
}

/// The JSON schema of the file, for editors.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(Spec);
    schema.insert("title".to_owned(), "raftsman.yaml".into());
    schema.to_value()
}

fn empty() -> Diagnostic {
    Diagnostic::error("empty-file", Path::root(), 0..0, "the file is empty")
        .help("the shortest useful file:\n\nfleet: shop\netcd:\n  main:\n    members: 3")
}

/// Sorts, cuts the list at its limit, and adds lines and columns.
fn finish(mut diagnostics: Vec<Diagnostic>, text: &str) -> Vec<Diagnostic> {
    // What this version does not carry out yet is said after what is wrong.
    let later = |diagnostic: &Diagnostic| diagnostic.code == check::LATER;
    diagnostics.sort_by_key(|diagnostic| (later(diagnostic), diagnostic.span.start, diagnostic.severity));
    for severity in [Severity::Error, Severity::Warning] {
        let mut seen = 0;
        let mut last = 0..0;
        diagnostics.retain(|diagnostic| {
            seen += usize::from(diagnostic.severity == severity);
            let kept = diagnostic.severity != severity || seen <= LISTED;
            if kept && diagnostic.severity == severity {
                last = diagnostic.span.clone();
            }
            kept
        });
        if seen > LISTED {
            let what = if severity == Severity::Error { "errors" } else { "warnings" };
            let mut more = Diagnostic::new(
                severity,
                "and-more",
                Path::root(),
                last,
                format!("… and more {what} after these {LISTED}"),
            );
            more.help = Some("what is wrong in one cluster is often wrong in all: start with the first".to_owned());
            diagnostics.push(more);
        }
    }
    let lines = diagnostic::Lines::new(text);
    for diagnostic in &mut diagnostics {
        (diagnostic.line, diagnostic.column) = lines.position(diagnostic.span.start);
    }
    diagnostics
}

const TOP: [&str; 8] = ["fleet", "state", "machines", "etcd", "postgres", "balancers", "backups", "accept_warnings"];

/// Decodes section by section and cluster by cluster, so that an error costs no more than its section.
fn decode_file(root: &mut Node, diagnostics: &mut Vec<Diagnostic>, tainted: &mut Vec<Path>) -> Option<Spec> {
    if root.is_null() {
        diagnostics.push(empty());
        return None;
    }
    let head = root.head();
    let Kind::Map(map) = &mut root.kind else {
        let message = "the file must be a mapping: `key: value` on each line";
        diagnostics.push(
            Diagnostic::error("wrong-type", Path::root(), head, message)
                .help(format!("the keys are `{}`", TOP.join("`, `"))),
        );
        return None;
    };
    // One more than is listed, so that it shows when there are more.
    let limit = LISTED + 1;
    let (mut fleet, mut state, mut machines, mut etcd, mut backups) = (None, None, None, IndexMap::new(), None);
    let (mut postgres, mut balancers, mut accepted) = (IndexMap::new(), IndexMap::new(), None);
    let mut lost = Vec::new();
    for entry in map.entries.iter_mut().filter(|entry| !entry.value.pruned) {
        let path = Path::root().key(&entry.key);
        match entry.key.as_str() {
            "fleet" => fleet = Some(value::<Name>(entry, &path, limit, diagnostics, tainted)),
            "state" => state = Some(value::<String>(entry, &path, limit, diagnostics, tainted)),
            "machines" => machines = value::<Machines>(entry, &path, limit, diagnostics, tainted),
            "etcd" => etcd = by_name(entry, &path, CLUSTERS, limit, diagnostics, tainted),
            "postgres" => postgres = by_name(entry, &path, POSTGRES, limit, diagnostics, tainted),
            "balancers" => balancers = by_name(entry, &path, BALANCERS, limit, diagnostics, tainted),
            "backups" => backups = value::<Backups>(entry, &path, limit, diagnostics, tainted),
            "accept_warnings" => accepted = value::<Vec<String>>(entry, &path, limit, diagnostics, tainted),
            unknown => {
                let meant = nearest(unknown, &TOP);
                lost.extend(meant);
                tainted.push(path.clone());
                tainted.extend(meant.map(|meant| Path::root().key(meant)));
                let help = match meant {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("the keys here are `{}`", TOP.join("`, `")),
                };
                let message = format!("unknown key {}", quoted(unknown));
                diagnostics.push(Diagnostic::error("unknown-key", path, entry.key_span.clone(), message).help(help));
            }
        }
    }
    if fleet.is_none() && !lost.contains(&"fleet") {
        diagnostics.push(
            Diagnostic::error("missing-key", Path::root(), head, "the key `fleet` is missing")
                .help("add `fleet: shop`, with your own name for it"),
        );
    }
    // Checks of the rest need some name here; the file is refused all the same.
    let fleet = fleet.flatten().unwrap_or_else(|| {
        tainted.push(Path::of(&["fleet"]));
        Name::fixed("fleet")
    });
    Some(Spec {
        fleet,
        state: state.flatten().unwrap_or_else(default_state),
        machines: machines.unwrap_or_default(),
        etcd,
        postgres,
        balancers,
        backups,
        accept_warnings: accepted.unwrap_or_default(),
    })
}

/// Decodes the value of one key, and makes it point at the key where nothing was written.
fn value<T: for<'x> serde::Deserialize<'x>>(
    entry: &mut Entry,
    path: &Path,
    limit: usize,
    diagnostics: &mut Vec<Diagnostic>,
    tainted: &mut Vec<Path>,
) -> Option<T> {
    let before = diagnostics.len();
    let decoded = section(&mut entry.value, path, limit, diagnostics, tainted);
    let head = entry.value.head();
    for diagnostic in &mut diagnostics[before..] {
        if diagnostic.span.is_empty() || diagnostic.code == "missing-key" && diagnostic.span == head {
            diagnostic.span = entry.key_span.clone();
        }
    }
    decoded
}

/// What a section holds by name: the word for it, and how it is written.
type Section = (&'static str, &'static str);
const CLUSTERS: Section = ("cluster", "etcd:\n  main:\n    members: 3");
const POSTGRES: Section = ("PostgreSQL cluster", "postgres:\n  app:\n    etcd: main\n    nodes: 3");
const BALANCERS: Section = ("balancer", "balancers:\n  front:\n    etcd: main\n    instances: 2");

fn by_name<T: for<'x> serde::Deserialize<'x>>(
    entry: &mut Entry,
    path: &Path,
    (what, example): Section,
    limit: usize,
    diagnostics: &mut Vec<Diagnostic>,
    tainted: &mut Vec<Path>,
) -> IndexMap<Name, T> {
    let mut found = IndexMap::new();
    if entry.value.is_null() {
        return found;
    }
    let Kind::Map(map) = &mut entry.value.kind else {
        tainted.push(path.clone());
        let message = format!("expected the {what}s by name, found something else");
        diagnostics.push(
            Diagnostic::error("wrong-type", path.clone(), entry.key_span.clone(), message)
                .help(format!("write each {what} as a key of its own:\n\n{example}")),
        );
        return found;
    };
    for named in map.entries.iter_mut().filter(|entry| !entry.value.pruned) {
        if diagnostics.len() >= limit {
            break;
        }
        let path = path.clone().key(&named.key);
        let decoded = value::<T>(named, &path, limit, diagnostics, tainted);
        match (Name::parse(&named.key), decoded) {
            (Ok(name), Some(decoded)) => {
                found.insert(name, decoded);
            }
            (Ok(_), None) => tainted.push(path),
            (Err(error), _) => {
                tainted.push(path.clone());
                let mut diagnostic = Diagnostic::error("invalid-value", path, named.key_span.clone(), error.what);
                diagnostic.help = error.help;
                diagnostics.push(diagnostic);
            }
        }
    }
    found
}
