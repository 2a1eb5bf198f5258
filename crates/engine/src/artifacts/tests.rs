//! Real binaries, and every way in which one is not what it should be → the artifact, or a helpful message.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use flate2::{Compression, write::GzEncoder};
use raftsman_core::spec::{Archive, Checksums};
use tempfile::TempDir;

use super::*;

const V36: EtcdVersion = EtcdVersion::new(3, 6, 15);

fn lab() -> PathBuf {
    PathBuf::from(std::env::var_os("RAFTSMAN_ETCD_DIR").expect("RAFTSMAN_ETCD_DIR is not set: run `just lab` first"))
}

fn scratch() -> (TempDir, Artifacts) {
    let dir = TempDir::new().unwrap();
    let artifacts = Artifacts::new(dir.path().join("cache"), Examined::default());
    (dir, artifacts)
}

fn script(dir: &Path, name: &str, text: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

fn archive(dir: &Path, entries: &[(&str, &[u8])]) -> Archive {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o755);
        // Written directly: the library would refuse to make the hostile names that we must refuse to follow.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, *bytes).unwrap();
    }
    let bytes = builder.into_inner().unwrap().finish().unwrap();
    fs::write(dir.join("etcd.tar.gz"), &bytes).unwrap();
    Archive { file: Some("etcd.tar.gz".into()), url: None, sha256: Checksums::One(raftsman_api::hex::sha256(&bytes)) }
}

fn says(version: &str) -> Vec<u8> {
    format!("#!/bin/sh\necho 'etcd Version: {version}'\n").into_bytes()
}

#[test]
fn every_version_of_the_lab_is_found_in_its_directory() {
    let (dir, artifacts) = scratch();
    let source = Source::Directory(lab().to_str().unwrap().to_owned());
    let versions = versions_in(&lab());
    assert!(versions.contains(&V36), "{versions:?}");
    for version in versions {
        let found = artifacts.locate(&source, version, dir.path()).unwrap();
        assert_eq!(found.version, version);
        assert_eq!(found.path, lab().join(version.to_string()).join("etcd"));
        assert_eq!(found.sha256, sha256sum(&found.path));
    }
}

fn sha256sum(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_owned()
}

#[test]
fn a_file_is_examined_again_only_when_it_changes() {
    let (dir, artifacts) = scratch();
    let counter = dir.path().join("runs");
    let text = |version| format!("#!/bin/sh\necho run >> {}\necho 'etcd Version: {version}'\n", counter.display());
    script(dir.path(), "etcd", text("3.6.15").as_bytes());
    let source = Source::File("etcd".into());
    for _ in 0..100 {
        artifacts.locate(&source, V36, dir.path()).unwrap();
    }
    assert_eq!(fs::read_to_string(&counter).unwrap().lines().count(), 1);
    script(dir.path(), "etcd.new", text("3.5.34").as_bytes());
    fs::rename(dir.path().join("etcd.new"), dir.path().join("etcd")).unwrap();
    let error = artifacts.locate(&source, V36, dir.path()).unwrap_err();
    assert!(matches!(error, ArtifactError::WrongVersion { found: EtcdVersion { minor: 5, .. }, .. }), "{error}");
}

#[test]
fn hashing_a_binary_is_cheap() {
    let path = lab().join("3.6.15/etcd");
    let took = || {
        let begin = Instant::now();
        probe::sha256(&path).unwrap();
        begin.elapsed()
    };
    // The first reads it from the disk, and others may have to wait for a processor.
    let fastest = (0..5).map(|_| took()).min().unwrap();
    assert!(fastest.as_millis() < 1000, "{fastest:?}");
}

#[test]
fn the_path_is_searched_in_order_and_skips_what_cannot_be_run() {
    let (dir, artifacts) = scratch();
    let [plain, good, later] = ["plain", "good", "later"].map(|name| dir.path().join(name));
    for directory in [&plain, &good, &later] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(plain.join("etcd"), "text").unwrap();
    script(&good, "etcd", &says("3.6.15"));
    script(&later, "etcd", &says("3.5.34"));
    let search = std::env::join_paths([&plain, &good, &later]).unwrap();
    let found = artifacts.locate_with(&Source::Path, V36, dir.path(), &search).unwrap();
    assert_eq!(found.path, good.join("etcd"));
}

#[test]
fn of_a_package_the_program_is_taken() {
    let (dir, _) = scratch();
    let base = dir.path();
    for directory in ["usr/bin", "etc/etcd", "usr/share/bin/etcd"] {
        fs::create_dir_all(base.join(directory)).unwrap();
    }
    script(&base.join("usr/bin"), "etcd", &says("3.5.34"));
    let listed = ["/.", "/etc/etcd", "/usr/share/bin/etcd", "/usr/bin", "/usr/bin/etcd"]
        .map(|path| format!("{}{path}\n", base.display()));
    assert_eq!(etcd_among(&listed.concat()), Some(base.join("usr/bin/etcd")));
    assert_eq!(etcd_among(&listed[..4].concat()), None);
}

#[test]
fn of_an_archive_only_etcd_is_unpacked_and_only_once() {
    let (dir, artifacts) = scratch();
    let source = Source::Archive(archive(
        dir.path(),
        &[
            ("../../escaped/etcd", &says("6.6.6")),
            ("/tmp/etcd", &says("6.6.6")),
            ("etcd-v3.6.15-linux-amd64/README.md", b"read me"),
            ("etcd-v3.6.15-linux-amd64/doc/etcd", &says("6.6.6")),
            ("etcd-v3.6.15-linux-amd64/etcdctl", b"no"),
            ("etcd-v3.6.15-linux-amd64/etcd", &says("3.6.15")),
        ],
    ));
    let found = artifacts.locate(&source, V36, dir.path()).unwrap();
    let cached: Vec<_> = fs::read_dir(dir.path().join("cache")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(cached, std::slice::from_ref(&found.path));
    assert_eq!(fs::read(&found.path).unwrap(), says("3.6.15"));
    fs::remove_file(dir.path().join("etcd.tar.gz")).unwrap();
    assert_eq!(
        Artifacts::new(dir.path().join("cache"), Examined::default()).locate(&source, V36, dir.path()).unwrap(),
        found
    );
}

#[test]
fn an_archive_that_was_changed_is_not_even_opened() {
    let (dir, artifacts) = scratch();
    let archive = archive(dir.path(), &[("etcd-v3.6.15-linux-amd64/etcd", &says("3.6.15"))]);
    let mut file = fs::OpenOptions::new().append(true).open(dir.path().join("etcd.tar.gz")).unwrap();
    file.write_all(b"!").unwrap();
    let error = artifacts.locate(&Source::Archive(archive), V36, dir.path()).unwrap_err();
    assert!(matches!(error, ArtifactError::HashMismatch { .. }), "{error}");
    assert!(!dir.path().join("cache").exists());
}

#[test]
fn what_etcd_reads_from_the_environment_does_not_reach_it() {
    let (dir, artifacts) = scratch();
    // A shell sets variables of its own; none of this test's may be among them.
    script(dir.path(), "etcd", b"#!/bin/sh\n[ -z \"$CARGO_PKG_NAME$HOME\" ] || exit 1\necho 'etcd Version: 3.6.15'\n");
    artifacts.locate(&Source::File("etcd".into()), V36, dir.path()).unwrap();
}

#[test]
fn messages() {
    let (dir, artifacts) = scratch();
    let base = dir.path();
    let file = |name: &str| Source::File(name.into());
    fs::write(base.join("plain"), "text").unwrap();
    script(base, "old", &says("3.5.34"));
    script(base, "fails", b"#!/bin/sh\nexit 3\n");
    script(base, "other", b"#!/bin/sh\necho hello\n");
    script(base, "text", b"\0\0\0no program at all, just bytes");
    let mut foreign = fs::read(lab().join("3.6.15/etcd")).unwrap();
    foreign.truncate(4096);
    foreign[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    script(base, "foreign", &foreign);
    fs::create_dir_all(base.join("versions/3.5.34")).unwrap();
    script(&base.join("versions/3.5.34"), "etcd", &says("3.5.34"));
    fs::create_dir(base.join("none")).unwrap();
    let good = archive(base, &[("x/etcd", &says("3.5.34"))]);
    let swapped = Archive { sha256: Checksums::One("0".repeat(64)), ..good.clone() };
    let cases: Vec<(&str, Source)> = vec![
        ("not on the path", Source::Path),
        ("no such file", file("missing")),
        ("not executable", file("plain")),
        ("a directory", file("none")),
        ("wrong version", file("old")),
        ("fails", file("fails")),
        ("another program", file("other")),
        ("no program", file("text")),
        ("wrong architecture", file("foreign")),
        ("version not in directory", Source::Directory("versions".into())),
        ("nothing in directory", Source::Directory("none".into())),
        ("package name", Source::Package("--help".into())),
        ("package not installed", Source::Package("raftsman-no-such-package".into())),
        ("package without etcd", Source::Package("dpkg".into())),
        ("not a hash", Source::Archive(Archive { sha256: Checksums::One("abc".into()), ..good.clone() })),
        ("hash mismatch", Source::Archive(swapped)),
        ("archive missing", Source::Archive(Archive { file: Some("missing.tar.gz".into()), ..good.clone() })),
        ("no hash", Source::Archive(Archive { sha256: Checksums::Each(Default::default()), ..good.clone() })),
        ("wrong version in archive", Source::Archive(good)),
    ];
    let mut text = String::new();
    for (case, source) in cases {
        let error = artifacts.locate_with(&source, V36, base, OsStr::new("")).unwrap_err();
        text += &format!("{case}:\n  {error}\n");
    }
    let empty = archive(base, &[("x/README", b"")]);
    text += &format!("empty archive:\n  {}\n", artifacts.locate(&Source::Archive(empty), V36, base).unwrap_err());
    fs::write(base.join("etcd.tar.gz"), "no archive").unwrap();
    let sha256 = sha256sum(&base.join("etcd.tar.gz"));
    let broken = Archive { file: Some("etcd.tar.gz".into()), url: None, sha256: Checksums::One(sha256) };
    let broken = Source::Archive(broken);
    text += &format!("no archive:\n  {}\n", artifacts.locate(&broken, V36, base).unwrap_err());
    let base = base.to_str().unwrap();
    let text = text.replace(base, "/base").replace(std::env::consts::ARCH, "<arch>");
    insta::with_settings!({filters => vec![("[0-9a-f]{64}", "<sha256>"), ("[0-9a-f]{16}\\b", "<sha256>"), ("for (x86_64|aarch64);", "for <other>;")]}, {
        insta::assert_snapshot!(text);
    });
}

/// A server that answers each request with the next of these answers, and tells what it was asked for.
fn server(answers: Vec<Vec<u8>>) -> (u16, thread::JoinHandle<Vec<String>>) {
    use std::io::{BufRead as _, BufReader};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            asked.push(lines.next().unwrap());
            lines.find(String::is_empty);
            stream.write_all(&answer).unwrap();
        }
        asked
    });
    (port, serving)
}

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    let mut answer =
        format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

fn at(port: u16, sums: &[(EtcdVersion, String)]) -> Source {
    let url = Some(format!("http://127.0.0.1:{port}/v{{version}}/etcd.tar.gz"));
    let sha256 = Checksums::Each(sums.iter().cloned().collect());
    Source::Archive(Archive { file: None, url, sha256 })
}

#[tokio::test]
async fn an_archive_is_downloaded_once() {
    let (dir, artifacts) = scratch();
    archive(dir.path(), &[("x/etcd", &says("3.6.15"))]);
    let bytes = fs::read(dir.path().join("etcd.tar.gz")).unwrap();
    fs::remove_file(dir.path().join("etcd.tar.gz")).unwrap();
    let (port, serving) = server(vec![answer("302 Found\r\nLocation: /elsewhere", b""), answer("200 OK", &bytes)]);
    let source = at(port, &[(V36, raftsman_api::hex::sha256(&bytes))]);
    artifacts.fetch(&source, V36).await.unwrap();
    let found = artifacts.locate(&source, V36, dir.path()).unwrap();
    assert_eq!(fs::read(&found.path).unwrap(), says("3.6.15"));
    assert_eq!(serving.join().unwrap(), ["GET /v3.6.15/etcd.tar.gz HTTP/1.1", "GET /elsewhere HTTP/1.1"]);
    // The server is gone: the cache must serve the archive without a request.
    artifacts.fetch(&source, V36).await.unwrap();
    assert_eq!(artifacts.locate(&source, V36, dir.path()).unwrap(), found);
    let other = artifacts.fetch(&source, EtcdVersion::new(3, 5, 34)).await.unwrap_err();
    assert!(matches!(other, ArtifactError::NoHash { .. }), "{other}");
}

#[tokio::test]
async fn a_download_that_is_not_what_was_meant_is_not_kept() {
    let cases: [(Vec<u8>, &str); 5] = [
        (answer("200 OK", b"something else"), "has the SHA-256"),
        (answer("404 Not Found", b"no"), "404"),
        (answer("302 Found\r\nLocation: http://192.0.2.1/etcd.tar.gz", b""), "no https URL"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf".to_vec(), "cannot be downloaded"),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), "cannot be downloaded"),
    ];
    for (answer, says) in cases {
        let (dir, artifacts) = scratch();
        let (port, serving) = server(vec![answer]);
        let error = artifacts.fetch(&at(port, &[(V36, "0".repeat(64))]), V36).await.unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        serving.join().unwrap();
        let left: Vec<_> = fs::read_dir(dir.path().join("cache")).unwrap().collect();
        assert!(left.is_empty(), "{says}: {left:?}");
    }
}
