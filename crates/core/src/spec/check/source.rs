//! Where etcd comes from → references that lead nowhere, or to another version.

use std::collections::HashMap;

use super::super::diagnostic::Path;
use super::super::types::Source;
use super::super::units::{EtcdVersion, Name, quoted};
use super::{Finding, Findings};

pub(super) fn check(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    // One binary has one version: the first cluster that takes it decides which.
    let mut binaries: HashMap<&str, (&Name, EtcdVersion)> = HashMap::new();
    for (name, cluster) in &spec.etcd {
        let here = || Path::of(&["etcd", name.as_str(), "source"]);
        let version = || Path::of(&["etcd", name.as_str(), "version"]);
        let binary = match &cluster.source {
            Source::Path => Some(""),
            Source::File(file) => {
                findings.file(|| here().key("file"), file);
                Some(file.as_str())
            }
            Source::Directory(directory) => {
                findings.file(|| here().key("directory"), directory);
                None
            }
            Source::Package(package) => {
                let valid = package.len() >= 2
                    && package.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                    && package
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'.' | b'-'));
                if !valid {
                    findings.add(
                        Finding::error(
                            "package-invalid",
                            here().key("package"),
                            format!("{} is not the name of a Debian package", quoted(package)),
                        )
                        .help("such as `etcd-server`, without a version"),
                    );
                }
                None
            }
            Source::Archive(archive) => {
                let here = |key: &str| here().key("archive").key(key);
                findings.file(|| here("file"), &archive.file);
                if archive.sha256.len() != 64 || !archive.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
                    findings.add(
                        Finding::error(
                            "sha256-invalid",
                            here("sha256"),
                            format!(
                                "a SHA-256 is 64 hex digits, this is {} characters",
                                archive.sha256.chars().count()
                            ),
                        )
                        .help("copy the line of this archive from the `SHA256SUMS` file that is published beside it"),
                    );
                }
                if let Some(named) = version_in(&archive.file).filter(|named| *named != cluster.version) {
                    findings.add(
                        Finding::error(
                            "archive-version",
                            here("file"),
                            format!("the archive is of etcd {named}, but the cluster's version is {}", cluster.version),
                        )
                        .also(version(), "the version")
                        .help(format!("set `version: {named}`, or name the archive of {}", cluster.version)),
                    );
                }
                None
            }
        };
        if let Some(binary) = binary {
            let (first, chosen) = *binaries.entry(binary).or_insert((name, cluster.version));
            if chosen != cluster.version {
                let what = if binary.is_empty() { "`etcd` on the PATH".to_owned() } else { quoted(binary) };
                findings.add(
                    Finding::warning(
                        "one-binary-two-versions",
                        version(),
                        format!("the clusters `{first}` and `{name}` take {what} for two versions"),
                    )
                    .uses(here())
                    .uses(Path::of(&["etcd", first.as_str()]))
                    .why(format!("one binary cannot be both {chosen} and {}", cluster.version))
                    .help("use `source: { directory: … }`, with one directory a version"),
                );
            }
        }
    }
}

/// The version in a release archive's name.
fn version_in(file: &str) -> Option<EtcdVersion> {
    let name = file.rsplit('/').next()?.strip_prefix("etcd-v")?;
    EtcdVersion::parse(name.split_once("-linux").map_or(name, |(version, _)| version)).ok()
}
