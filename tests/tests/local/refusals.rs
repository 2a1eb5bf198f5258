//! What is unsafe or impossible → refused with a reason and a next step, and nothing is changed.
//!
//! Every message that an operator reads is in a snapshot.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use raftsman_tests::lab::{Lab, Output, binary, etcd_dir, eventually};
use raftsman_tests::story::{Story, Window};

mod file;
mod machines;
mod state;

const APPLY: [&str; 4] = ["apply", "--yes", "--timeout", "20s"];
const UNPRIVILEGED: u32 = 65534;

fn write(lab: &Lab, name: &str, text: &str, mode: u32) {
    let path = lab.path().join(name);
    std::fs::write(&path, text).expect("a file");
    chmod(&path, mode);
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
}

/// Takes a port; a killed process releases it a moment later.
fn listen(address: Ipv4Addr, port: u16) -> TcpListener {
    eventually("the port is free", || TcpListener::bind((address, port)).ok())
}

/// Runs raftsman as another user.
fn run_unprivileged(lab: &Lab, arguments: &[&str]) -> Output {
    let ids = [format!("--reuid={UNPRIVILEGED}"), format!("--regid={UNPRIVILEGED}"), "--clear-groups".to_owned()];
    let mut command = Command::new("setpriv");
    command.args(ids).arg("--").arg(binary("raftsman")).args(arguments).current_dir(lab.path()).stdin(Stdio::null());
    let output = command.env("HOME", "/nonexistent").output().expect("setpriv");
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A fleet of one cluster `main` with these lines in its section.
fn file(lines: &[&str]) -> String {
    let mut file = String::from("fleet: lab\netcd:\n  main:\n");
    for line in lines {
        file.push_str(&format!("    {line}\n"));
    }
    file
}

fn source() -> String {
    format!("source: {{ directory: {:?} }}", etcd_dir())
}

/// The same lab with another file for one command, which must be refused.
#[track_caller]
fn with_file(story: &mut Story, what: &str, lab: &Lab, window: Option<&Window>, text: &str, says: &[&str]) {
    let before = lab.file();
    lab.write_file(text);
    story.refuse(what, lab, window, &APPLY, says);
    lab.write_file(&before);
}

/// A self-signed certificate and its key, as an operator would bring them.
fn authority(lab: &Lab, name: &str, years: (i32, i32), is_ca: bool) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    parameters.not_before = rcgen::date_time_ymd(years.0, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(years.1, 1, 1);
    if is_ca {
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    }
    let certificate = parameters.self_signed(&key).expect("a certificate");
    write(lab, &format!("{name}.crt"), &certificate.pem(), 0o644);
    write(lab, &format!("{name}.key"), &key.serialize_pem(), 0o600);
}
