//! Every secret is a canary: after every verb, in both ways to log in, it is nowhere but in its encrypted or 0600 place.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raftsman_engine::store::{IdentitySource, Store};
use raftsman_tests::files::write_private;
use raftsman_tests::lab::engine::block_on;
use raftsman_tests::lab::{Lab, Output, etcd_dir, processes};
use secrecy::ExposeSecret as _;

const FROM_FILE: &str = "canary-root-password-from-a-file-4f1c";
const FROM_ENV: &str = "canary-root-password-from-the-environment-9be2";
const PASSPHRASE: &str = "canary passphrase of the state 77aa";

/// A secret's name, and a piece of it that nothing else contains.
type Canaries = BTreeMap<String, String>;

/// The piece of a secret to look for: of a PEM text a line in the middle, which is all key.
fn piece(secret: &str) -> String {
    if secret.contains("-----BEGIN") {
        let body: Vec<&str> = secret.lines().filter(|l| !l.starts_with("-----") && l.len() > 20).collect();
        return body[body.len() / 2].to_owned();
    }
    secret.trim().to_owned()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

/// Everything secret that the state and the machines hold now.
fn secrets_of(lab: &Lab, passphrase: Option<&str>) -> Canaries {
    let state = lab.path().join(".raftsman");
    let mut canaries = Canaries::new();
    let store = block_on(Store::open(&state, "lab")).expect("the state");
    let source = IdentitySource::State(passphrase.map(|p| p.to_owned().into()));
    let secrets = block_on(store.unlock(source)).expect("the secrets");
    for name in block_on(secrets.names()).expect("names") {
        let value = block_on(secrets.get(&name)).expect("readable").expect("there");
        canaries.insert(format!("state {name}"), piece(value.expose_secret()));
    }
    if let Ok(identity) = std::fs::read_to_string(state.join("identity.txt")) {
        let line = identity.lines().find(|l| l.starts_with("AGE-SECRET-KEY")).expect("an identity");
        canaries.insert("age identity".to_owned(), line.to_owned());
    }
    for path in files(&state.join("machines")) {
        if path.file_name().is_some_and(|n| n.to_string_lossy().ends_with(".key")) {
            let name = path.strip_prefix(lab.path()).expect("below").display().to_string();
            canaries.insert(format!("machine key {name}"), piece(&std::fs::read_to_string(&path).expect("a key")));
        }
    }
    canaries
}

/// Where a secret may be in clear. Everything here must be closed to all but its owner.
fn may_hold(name: &str, path: &str) -> bool {
    match name {
        "age identity" => path == ".raftsman/identity.txt",
        // The one in force is kept in the state, too: without it no client could change it in etcd.
        "root password from a file" | "state main-root-password" => {
            path == "root.password" || path == ".raftsman/clients/main/root.password"
        }
        "root password from the environment" => path == ".raftsman/clients/main/root.password",
        // The one that was brought is kept in the state, too, for as long as the cluster trusts it.
        "brought key" | "state main-clients" => path == "brought.key",
        "passphrase" => path == "passphrase",
        // A machine's own key, in its own directory.
        _ => name.strip_prefix("machine key ").is_some_and(|own| own == path),
    }
}

fn look_through_files(lab: &Lab, canaries: &Canaries) {
    // etcd's own binary, 25 MB, several times: it holds none of our secrets.
    let binary = |path: &Path| path.file_name().is_some_and(|name| name == "etcd" || name == "etcd-3.6.15");
    for path in files(lab.path()).into_iter().filter(|path| !binary(path)) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        let shown = path.strip_prefix(lab.path()).expect("below").display().to_string();
        for (name, canary) in canaries {
            if contains(&bytes, canary) {
                assert!(may_hold(name, &shown), "{name} is in {shown}");
                let mode = std::fs::metadata(&path).expect("there").permissions().mode() & 0o777;
                // etcd's user reads its keys by its group, where it has a user of its own; no other user can here.
                let allowed = if name.starts_with("machine key ") { 0o640 } else { 0o600 };
                assert_eq!(mode & !allowed, 0, "{name} is in {shown}, which others can read");
                let machines = std::fs::metadata(lab.path().join(".raftsman")).expect("the state").permissions().mode();
                assert_eq!(machines & 0o777, 0o700, "others can enter the state");
            }
        }
    }
}

fn contains(bytes: &[u8], canary: &str) -> bool {
    memchr::memmem::find(bytes, canary.as_bytes()).is_some()
}

fn look_through_output(canaries: &Canaries, what: &str, output: &Output) {
    for (name, canary) in canaries {
        assert!(!output.all().contains(canary.as_str()), "{name} was printed by {what}");
    }
}

/// What the command lines and environments of this lab's processes hold, as long as it is watched.
struct Watch {
    stop: std::sync::Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Seen>,
}

/// Command lines and environments, and the join tokens that were valid meanwhile.
type Seen = (BTreeSet<Vec<u8>>, BTreeSet<String>);

impl Watch {
    fn over(lab: &Lab) -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let (root, stopped) = (lab.path().to_path_buf(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (mut seen, mut tokens) = (BTreeSet::new(), BTreeSet::new());
            let shown = root.to_string_lossy().into_owned();
            while !stopped.load(Ordering::Relaxed) {
                for (pid, line) in processes() {
                    seen.insert(line.clone().into_bytes());
                    // The operator's own environment is the operator's choice; what we start must not inherit it.
                    if line.contains(&shown) {
                        seen.extend(std::fs::read(format!("/proc/{pid}/environ")));
                    }
                }
                for path in files(&root.join(".raftsman/machines")) {
                    if path.ends_with("agent/boot.json")
                        && let Ok(text) = std::fs::read_to_string(&path)
                        && let Ok(boot) = serde_json::from_str::<serde_json::Value>(&text)
                        && let Some(token) = boot["join_token"].as_str()
                    {
                        tokens.insert(token.to_owned());
                    }
                }
                std::thread::sleep(Duration::from_millis(3));
            }
            (seen, tokens)
        });
        Self { stop, thread }
    }

    fn end(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it ends")
    }
}

/// One fleet through every verb; its own canaries, and those that are found in its state, are looked for everywhere.
fn a_life(further: &[&str], own: &[(&str, &str)], environment: &[(&str, &str)], passphrase: bool) {
    let mut file =
        format!("fleet: lab\netcd:\n  main:\n    members: 3\n    source: {{ directory: {:?} }}\n", etcd_dir());
    for line in further {
        file.push_str(&format!("    {line}\n"));
    }
    let lab = Lab::new(&file);
    let write = |name: &str, text: &str| write_private(lab.path().join(name), text);
    write("root.password", &format!("{FROM_FILE}\n"));
    write("passphrase", &format!("{PASSPHRASE}\n"));
    let mut brought = None;
    if file.contains("brought") {
        brought = Some(bring_authority(&lab));
    }
    let mut canaries: Canaries = own.iter().map(|(n, c)| ((*n).to_owned(), (*c).to_owned())).collect();
    canaries.extend(brought.map(|key| ("brought key".to_owned(), key)));
    let run = |arguments: &[&str]| -> Output {
        let mut command = lab.command(arguments);
        command.envs(environment.iter().copied());
        if passphrase {
            command.arg("--passphrase-file").arg(lab.path().join("passphrase"));
        }
        let output = command.output().expect("raftsman runs");
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    };
    let mut outputs = Vec::new();
    if passphrase {
        canaries.insert("passphrase".to_owned(), PASSPHRASE.to_owned());
        std::fs::rename(lab.path().join("raftsman.yaml"), lab.path().join("kept")).expect("aside");
        outputs.push(("init", run(&["init", "--passphrase"]).ok()));
        std::fs::rename(lab.path().join("kept"), lab.path().join("raftsman.yaml")).expect("back");
    }
    let watch = Watch::over(&lab);
    outputs.push(("apply", run(&["apply", "--yes", "--json", "--timeout", "60s"]).ok()));
    let (seen, tokens) = watch.end();
    assert!(!tokens.is_empty(), "the join tokens were seen while they lived");
    canaries.extend(tokens.into_iter().enumerate().map(|(n, token)| (format!("join token {n}"), token)));
    let verbs: &[&[&str]] = &[
        &["check", "--json"],
        &["plan"],
        &["plan", "--json"],
        &["status"],
        &["status", "--json"],
        &["env"],
        &["env", "--json"],
        &["cert", "list"],
        &["cert", "list", "--json"],
        &["cert", "issue", "alice", "--out", "certs", "--json"],
        &["journal", "-n", "1000"],
        &["journal", "-n", "1000", "--json"],
        &["logs", "main-1", "-n", "1000"],
        &["logs", "main-1", "--agent", "-n", "1000"],
        &["apply", "--yes"],
    ];
    outputs.extend(verbs.iter().map(|verb| (verb[0], run(verb).ok())));
    // Error messages, too.
    let wrong = lab.path().join("passphrase");
    outputs.push(("identity", run(&["status", "--identity", &wrong.display().to_string()]).failed()));
    canaries.extend(secrets_of(&lab, passphrase.then_some(PASSPHRASE)));
    assert!(canaries.len() >= 10, "{:?}", canaries.keys());
    // `alice.key` is what was asked for.
    std::fs::remove_dir_all(lab.path().join("certs")).expect("issued");
    for (what, output) in &outputs {
        look_through_output(&canaries, what, output);
    }
    look_through_files(&lab, &canaries);
    for (name, canary) in &canaries {
        let leak = seen.iter().find(|bytes| contains(bytes, canary));
        assert!(
            leak.is_none(),
            "{name} is in a command line or an environment: {}",
            String::from_utf8_lossy(leak.expect("one"))
        );
    }
    // The lab itself does not have the passphrase.
    run(&["destroy", "--yes"]).ok();
}

/// Makes an authority with openssl; a piece of its key.
fn bring_authority(lab: &Lab) -> String {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"])
        .args(["-subj", "/CN=brought", "-addext", "keyUsage=critical,keyCertSign,cRLSign"])
        .args(["-keyout", "brought.key", "-out", "brought.crt"])
        .current_dir(lab.path())
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = lab.path().join("brought.key");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    piece(&std::fs::read_to_string(path).expect("a key"))
}

#[test]
fn with_certificates() {
    a_life(&[], &[], &[], false);
}

#[test]
fn with_a_brought_authority() {
    a_life(
        &["ca: { clients: { brought: { certificate: brought.crt, key: { file: brought.key } } } }"],
        &[],
        &[],
        false,
    );
}

#[test]
fn with_a_password_that_is_made() {
    a_life(&["auth: { mode: password }"], &[], &[], false);
}

#[test]
fn with_a_password_from_a_file() {
    let own = [("root password from a file", FROM_FILE)];
    a_life(&["auth: { mode: password, root_password: { file: root.password } }"], &own, &[], false);
}

#[test]
fn with_a_password_from_the_environment() {
    let own = [("root password from the environment", FROM_ENV)];
    let environment = [("ETCD_ROOT_PASSWORD", FROM_ENV)];
    a_life(&["auth: { mode: password, root_password: { env: ETCD_ROOT_PASSWORD } }"], &own, &environment, false);
}

#[test]
fn with_a_state_behind_a_passphrase() {
    a_life(&[], &[], &[], true);
}
