//! A decoded file → what is impossible, unwise or without effect in it.

mod backups;
mod balancers;
mod boot;
mod cluster;
mod flags;
mod groups;
mod incus;
mod libvirt;
mod machines;
mod maintenance;
mod members;
mod overrides;
mod pki;
mod postgres;
mod source;
mod users;
mod zones;

use std::collections::BTreeSet;

pub(crate) use flags::ignored_by;
pub(crate) use postgres::parameter_allowed;
pub(super) use postgres::{LATER, timings};

use super::diagnostic::{Diagnostic, Path, Severity};
use super::document::Node;
use super::secrecy;
use super::types::{Secret, Spec};
use super::units::quoted;

/// What a rule found.
#[derive(Debug)]
pub(super) struct Finding {
    severity: Severity,
    code: &'static str,
    path: Path,
    message: String,
    why: Option<String>,
    help: Option<String>,
    /// All that the rule looked at besides the path itself.
    uses: Vec<Path>,
    /// Point at the key rather than at its value.
    on_key: bool,
    also: Vec<(Path, &'static str)>,
}

impl Finding {
    fn new(severity: Severity, code: &'static str, path: Path, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { severity, code, path, message, why: None, help: None, uses: Vec::new(), on_key: false, also: Vec::new() }
    }

    fn error(code: &'static str, path: Path, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, path, message)
    }

    fn warning(code: &'static str, path: Path, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, path, message)
    }

    fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    fn uses(mut self, path: Path) -> Self {
        self.uses.push(path);
        self
    }

    fn on_key(mut self) -> Self {
        self.on_key = true;
        self
    }

    /// Shows another place with it. The rule rests on that place too.
    fn also(mut self, path: Path, label: &'static str) -> Self {
        self.also.push((path, label));
        self
    }

    fn rests_on(&self, tainted: &Path) -> bool {
        let others = self.uses.iter().chain(self.also.iter().map(|(path, _)| path));
        std::iter::once(&self.path).chain(others).any(|path| path.overlaps(tainted))
    }
}

/// A certificate file that the spec names → an identifier of its public key, where it could be read.
pub type PublicKeys<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Collects what the rules find.
struct Findings<'s> {
    spec: &'s Spec,
    tainted: &'s [Path],
    keys: PublicKeys<'s>,
    found: Vec<Finding>,
    counts: [usize; 2],
    limit: usize,
    /// Codes of warnings that the file accepts and that were found.
    accepted: BTreeSet<&'static str>,
}

impl Findings<'_> {
    /// Takes a finding, unless it rests on something that could not be read, or there are enough of its kind.
    fn add(&mut self, finding: Finding) {
        if finding.severity == Severity::Warning && self.spec.accept_warnings.iter().any(|code| code == finding.code) {
            self.accepted.insert(finding.code);
            return;
        }
        let count = &mut self.counts[usize::from(finding.severity == Severity::Warning)];
        if *count < self.limit && !self.tainted.iter().any(|tainted| finding.rests_on(tainted)) {
            *count += 1;
            self.found.push(finding);
        }
    }

    /// Checks a path to a file.
    fn file(&mut self, path: impl FnOnce() -> Path, value: &str) {
        if value.trim().is_empty() {
            self.add(
                Finding::error("empty-path", path(), "this path is empty")
                    .help("name a file or directory; relative paths start at this file"),
            );
        } else if value.starts_with('~') {
            self.add(
                Finding::error("home-path", path(), format!("`~` is not expanded in {}", quoted(value)))
                    .why("the file may be applied by another user, whose home is elsewhere")
                    .help("write the whole path, or one relative to this file"),
            );
        } else if value.contains(|c: char| c.is_control()) {
            self.add(
                Finding::error("bad-path", path(), "this path holds a control character")
                    .help("write it on one line, without escapes"),
            );
        } else if value.starts_with("http://") || value.starts_with("https://") {
            self.add(
                Finding::error("url-path", path(), format!("expected a file, found the address {}", quoted(value)))
                    .help("download it first, and name the file here"),
            );
        }
    }

    /// Checks a reference to a secret.
    fn secret(&mut self, path: impl Fn() -> Path, secret: &Secret) {
        match secret {
            Secret::File(file) => self.file(|| path().key("file"), file),
            Secret::Env(name) => {
                if !secrecy::is_variable(name) {
                    // Not repeated: it may be the secret itself.
                    self.add(
                        Finding::error(
                            "bad-variable",
                            path().key("env"),
                            "this is not the name of an environment variable",
                        )
                        .help("a name such as `ETCD_ROOT_PASSWORD`: letters, digits and `_`, without `$`"),
                    );
                }
            }
        }
    }
}

/// Runs every rule; findings that rest on something `tainted` are dropped, the rest get their places.
pub(super) fn check(spec: &Spec, root: &Node, tainted: &[Path], keys: PublicKeys<'_>, limit: usize) -> Vec<Diagnostic> {
    // One more than is listed, so that it shows when there are more.
    let (found, accepted) = (Vec::new(), BTreeSet::new());
    let mut findings = Findings { spec, tainted, keys, found, counts: [0, 0], limit: limit + 1, accepted };
    if spec.etcd.is_empty() && spec.postgres.is_empty() {
        findings.add(
            Finding::error("no-clusters", Path::of(&["etcd"]), "the file has no cluster")
                .on_key()
                .help("add one:\n\netcd:\n  main:\n    members: 3"),
        );
    }
    findings.file(|| Path::of(&["state"]), &spec.state);
    backups::check(&mut findings);
    machines::check(&mut findings);
    boot::check(&mut findings);
    incus::check(&mut findings);
    libvirt::check(&mut findings);
    members::check(&mut findings);
    overrides::check(&mut findings);
    zones::check(&mut findings);
    balancers::check(&mut findings);
    source::check(&mut findings);
    pki::shared(&mut findings);
    for (name, cluster) in &spec.etcd {
        cluster::check(&mut findings, name, cluster);
        pki::check(&mut findings, name, cluster);
        flags::check(&mut findings, name, cluster);
        maintenance::check(&mut findings, name, cluster);
        users::check(&mut findings, name, cluster);
    }
    postgres::check(&mut findings);
    zones::advise(&mut findings);
    acceptances(&mut findings);
    postgres::later(&mut findings);
    findings.found.into_iter().map(|finding| placed(finding, root)).collect()
}

/// An acceptance that nothing needs is a misspelt code, or hides the next warning of its kind.
fn acceptances(findings: &mut Findings<'_>) {
    // What could not be read may have been the reason.
    if !findings.tainted.is_empty() || findings.found.iter().any(|finding| finding.severity == Severity::Error) {
        return;
    }
    let spec = findings.spec;
    for (index, code) in spec.accept_warnings.iter().enumerate() {
        if !findings.accepted.contains(code.as_str()) {
            findings.add(
                Finding::warning(
                    "acceptance-unused",
                    Path::of(&["accept_warnings"]).index(index),
                    format!("the file has no warning {}", quoted(code)),
                )
                .help("remove it; the code of a warning is in brackets: `warning[members-even]`"),
            );
        }
    }
}

fn placed(finding: Finding, root: &Node) -> Diagnostic {
    let (mut span, exact) = root.locate(&finding.path, finding.on_key);
    let mut also: Vec<_> = finding
        .also
        .iter()
        .filter_map(|(path, label)| match root.locate(path, false) {
            (span, true) => Some((span, *label)),
            // It is a default, and not written.
            (_, false) => None,
        })
        .collect();
    if !exact && also.len() == 1 {
        // Of two values that do not fit together only the other one is written: point there.
        span = also.remove(0).0;
    }
    let mut diagnostic = Diagnostic::new(finding.severity, finding.code, finding.path, span, finding.message);
    diagnostic.why = finding.why;
    diagnostic.help = finding.help;
    also.into_iter().fold(diagnostic, |diagnostic, (span, label)| diagnostic.also(span, label))
}
