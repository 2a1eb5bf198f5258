//! Where etcd comes from → references that are invalid, or lead to another version.

use std::collections::HashMap;

use super::super::diagnostic::Path;
use super::super::types::{Archive, Checksums, EtcdCluster, Source};
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
            Source::Package(name) => {
                package(findings, here().key("package"), name, "etcd-server");
                None
            }
            Source::Archive(of) => {
                archive(findings, name, cluster, of);
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

/// The name of a Debian package.
pub(super) fn package(findings: &mut Findings<'_>, path: Path, package: &str, example: &str) {
    let valid = package.len() >= 2
        && package.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && package.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'.' | b'-'));
    if !valid {
        let message = format!("{} is not the name of a Debian package", quoted(package));
        findings.add(
            Finding::error("package-invalid", path, message).help(format!("such as `{example}`, without a version")),
        );
    }
}

/// Where an archive is: its key and its value, where exactly one is given.
pub(super) fn place<'s>(
    findings: &mut Findings<'_>,
    here: &dyn Fn(&str) -> Path,
    program: &str,
    file: Option<&'s String>,
    url: Option<&'s String>,
) -> Option<(&'static str, &'s String)> {
    match (file, url) {
        (Some(file), None) => {
            findings.file(|| here("file"), file);
            Some(("file", file))
        }
        (None, Some(url)) => {
            if !trustworthy(url) {
                findings.add(
                    Finding::error("url-insecure", here("url"), format!("{} is not an https URL", quoted(url)))
                        .why(format!("without TLS, what is run as {program} can be changed on the way"))
                        .help("use https, or download the archive and name it with `file:`"),
                );
            }
            Some(("url", url))
        }
        (file, _) => {
            let (key, what) =
                if file.is_some() { ("url", "both `file` and `url`") } else { ("file", "neither `file` nor `url`") };
            findings.add(
                Finding::error("archive-place", here(key), format!("the archive has {what}"))
                    .help("`file:` for one that is here, `url:` for one that is to be downloaded"),
            );
            None
        }
    }
}

/// The SHA-256 of an archive.
pub(super) fn checksum(findings: &mut Findings<'_>, at: Path, sha256: &str) {
    if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
        let length = sha256.chars().count();
        let message = format!("a SHA-256 is 64 hex digits, this is {length} characters");
        findings.add(
            Finding::error("sha256-invalid", at, message)
                .help("copy the line of this archive from the `SHA256SUMS` file that is published beside it"),
        );
    }
}

fn archive(findings: &mut Findings<'_>, name: &Name, cluster: &EtcdCluster, archive: &Archive) {
    let here = |key: &str| Path::of(&["etcd", name.as_str(), "source", "archive"]).key(key);
    let version_at = || Path::of(&["etcd", name.as_str(), "version"]);
    let version = cluster.version;
    let Some((key, place)) = place(findings, &here, "etcd", archive.file.as_ref(), archive.url.as_ref()) else {
        return;
    };
    let sums: Vec<(Path, &str)> = match &archive.sha256 {
        Checksums::One(sha256) => vec![(here("sha256"), sha256)],
        Checksums::Each(each) => {
            each.iter().map(|(v, sha256)| (here("sha256").key(&v.to_string()), &**sha256)).collect()
        }
    };
    for (at, sha256) in sums {
        checksum(findings, at, sha256);
    }
    if archive.sha256.of(version).is_none() {
        findings.add(
            Finding::error("sha256-missing", here("sha256"), format!("there is no SHA-256 for etcd {version}"))
                .also(version_at(), "the version")
                .help("add the one that is published beside its archive"),
        );
    }
    if matches!(&archive.sha256, Checksums::Each(each) if each.len() > 1) && !place.contains(Archive::VERSION) {
        findings.add(
            Finding::error("archive-one-place", here(key), "one archive cannot have several SHA-256")
                .help("write `{version}` where the version stands in it"),
        );
    }
    if let Some(named) = version_in(place).filter(|named| *named != version) {
        findings.add(
            Finding::error(
                "archive-version",
                here(key),
                format!("the archive is of etcd {named}, but the cluster's version is {version}"),
            )
            .also(version_at(), "the version")
            .help(format!("set `version: {named}`, or name the archive of {version}")),
        );
    }
}

/// https; on this computer, where no network is in between, http as well.
fn trustworthy(url: &str) -> bool {
    let local = |rest: &str| rest.starts_with("127.") || rest.starts_with("localhost") || rest.starts_with("[::1]");
    url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty()) || url.strip_prefix("http://").is_some_and(local)
}

/// The version in a release archive's name.
fn version_in(file: &str) -> Option<EtcdVersion> {
    let name = file.rsplit('/').next()?.strip_prefix("etcd-v")?;
    EtcdVersion::parse(name.split_once("-linux").map_or(name, |(version, _)| version)).ok()
}
