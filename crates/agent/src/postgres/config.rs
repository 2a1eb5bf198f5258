//! Patroni's file as it was sent, its secrets, etcd's CA certificates → the files that Patroni reads; and back, without
//! secrets.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt as _, chown};
use std::path::PathBuf;

use raftsman_api::tls::{self, TlsError};
use raftsman_core::render::patroni::{
    self, DIR, ETCD_CA, MissingSecret, OnMachine, PgSecret, RUN, UNIT_SOCKETS, foreign_line,
};

use crate::files::{self, FileError};
use crate::postgres::lines::{self, Flaw};
use crate::root::Root;
use crate::supervisor::launch::Launcher;
use crate::supervisor::program::Program;
use crate::supervisor::systemd::{self, POSTGRES_USER, SystemdError};

/// The number that root has in the namespace where it runs PostgreSQL, and its name where that is not known.
pub const UNPRIVILEGED: u32 = 1;
const UNPRIVILEGED_NAME: &str = "daemon";
/// What comes with a call, without the file itself.
const LONGEST_SECRET: usize = 1024;
const LONGEST_STAMP: usize = 4096;
const LONGEST_CONFIG: usize = 256 * 1024;

/// Why Patroni was not configured.
#[derive(Debug, thiserror::Error)]
pub enum PatroniConfigError {
    /// Another file than was promised.
    #[error("the digest of Patroni's file is {found}, the call says {expected}: nothing was written")]
    OtherConfig {
        /// What was promised.
        expected: String,
        /// What came.
        found: String,
    },
    /// A line that raftsman does not write: Patroni's file names programs to run, and paths.
    #[error("line {0} of Patroni's file is none that raftsman writes: nothing was written")]
    Foreign(usize),
    /// Patroni would take the last of them.
    #[error("line {0} of Patroni's file says something for the second time: nothing was written")]
    Twice(usize),
    /// A line that protects the node.
    #[error("`{0}` is missing in Patroni's file, and is in every one that raftsman writes: nothing was written")]
    Missing(String),
    /// The machine is this computer.
    #[error("a watchdog would reset this computer, which is more than this machine: nothing was written")]
    Watchdog,
    /// Patroni makes no node the primary that lacks a watchdog which its file requires.
    #[error(
        "the file requires a watchdog, and {0} is no device of this machine: PostgreSQL would never have its primary here, and \
         nothing was written. Give the machine one (`modprobe softdog`, or a device of its hypervisor), or write \
         `watchdog: {{ mode: automatic }}`"
    )]
    NoWatchdog(String),
    /// A device that is no watchdog.
    #[error(
        "line {0} of Patroni's file names a device that is none of this machine's watchdogs (`/dev/watchdog`, or one with a \
         number): nothing was written"
    )]
    Device(usize),
    /// A node listens at its own machine.
    #[error("line {line} of Patroni's file has another address than this machine, {own}: nothing was written")]
    OtherAddress {
        /// The line's number.
        line: usize,
        /// The machine's address.
        own: IpAddr,
    },
    /// A secret that the file needs.
    #[error(transparent)]
    NoSecret(#[from] MissingSecret),
    /// A secret that it does not.
    #[error("Patroni's file has no place for a secret `{0}`: nothing was written")]
    UnknownSecret(String),
    /// No password.
    #[error("the secret `{0}` is empty, or longer than {LONGEST_SECRET} bytes: nothing was written")]
    UnusableSecret(&'static str),
    /// Too long.
    #[error("Patroni's file or its stamp is too long: nothing was written")]
    TooLong,
    /// The CA certificates are none.
    #[error("the CA certificates that members of etcd are checked by cannot be used: nothing was written")]
    Trust(#[source] TlsError),
    /// A path that cannot be written in the file.
    #[error("the machine's directory {} is not a text that Patroni's file can have", .0.display())]
    Root(PathBuf),
    /// The user is missing.
    #[error(transparent)]
    User(#[from] SystemdError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The file as it was sent, without secrets.
fn sent_file(root: &Root) -> PathBuf {
    root.path().join(DIR).join("patroni.sent.yml")
}

fn stamp_file(root: &Root) -> PathBuf {
    root.path().join(DIR).join("secrets.stamp")
}

/// Patroni's file as it was sent; none where it is not configured.
pub fn sent(root: &Root) -> Result<Option<String>, FileError> {
    files::read(&sent_file(root))
}

/// Patroni's file with its secrets.
pub fn with_secrets(root: &Root) -> Result<Option<String>, FileError> {
    files::read(&Program::Patroni.files(root).config())
}

/// What came with the last configuration.
pub fn stamp(root: &Root) -> Result<Option<String>, FileError> {
    files::read(&stamp_file(root))
}

/// What a call brings. Without `Debug`: it has secrets.
pub struct Sent {
    /// Patroni's file, with placeholders.
    pub config: String,
    /// Its digest.
    pub digest: String,
    /// Its secrets, by their names.
    pub secrets: HashMap<String, String>,
    /// The CA certificates that members of etcd are checked by.
    pub etcd_trust: String,
    /// What only the sender interprets.
    pub stamp: String,
}

/// Checks all of it, then writes it: what was sent last, so that whatever it says holds.
pub fn write(root: &Root, launcher: &Launcher, address: IpAddr, sent: &Sent) -> Result<(), PatroniConfigError> {
    let secrets = check(address, sent)?;
    has_its_watchdog(launcher, &sent.config)?;
    let text = root.path().to_str().ok_or_else(|| PatroniConfigError::Root(root.path().to_path_buf()))?;
    let (sockets, user) = (sockets(root, launcher), user(launcher));
    let on_machine = OnMachine { root: text, sockets: &sockets, user: &user, secrets: &secrets };
    let filled = patroni::filled(&sent.config, &on_machine)?;

    files::make_dir(&root.path().join(DIR).join("tls"), files::DIR_FOR_PROGRAM)?;
    files::write(&root.path().join(ETCD_CA), sent.etcd_trust.as_bytes(), files::FOR_PROGRAM)?;
    let config = Program::Patroni.files(root).config();
    files::write(&config, filled.as_bytes(), 0o600)?;
    let run = root.path().join(RUN);
    files::make_dir(&run, 0o700)?;
    if let Launcher::Unit(_) = launcher
        && let Some(owner) = systemd::owner(POSTGRES_USER)?
    {
        // Where there is no such user yet, the start makes it, and gives both.
        for path in [config, run] {
            let given = chown(&path, Some(owner.user), Some(owner.group));
            given.map_err(FileError::of("change the owner of", &path))?;
        }
    }
    files::write(&sent_file(root), sent.config.as_bytes(), 0o600)?;
    Ok(files::write(&stamp_file(root), sent.stamp.as_bytes(), 0o600)?)
}

/// Whether the machine is as the file says of watchdogs.
fn has_its_watchdog(launcher: &Launcher, config: &str) -> Result<(), PatroniConfigError> {
    let of_watchdog = |key| patroni::value(config, "watchdog", key);
    match (launcher, of_watchdog("mode").as_deref()) {
        (_, Some("off")) => Ok(()),
        (Launcher::Child, _) => Err(PatroniConfigError::Watchdog),
        (Launcher::Unit(_), Some("required")) => {
            let device = of_watchdog("device").unwrap_or_else(|| "/dev/watchdog".to_owned());
            // The agent's own unit has no devices: those of the machine are what its first process sees.
            let is_missing = match std::fs::metadata(format!("/proc/1/root{device}")) {
                Ok(found) => !found.file_type().is_char_device(),
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
            if is_missing { Err(PatroniConfigError::NoWatchdog(device)) } else { Ok(()) }
        }
        (Launcher::Unit(_), _) => Ok(()),
    }
}

/// All checks of what was sent; returns the secrets.
fn check(address: IpAddr, sent: &Sent) -> Result<BTreeMap<PgSecret, String>, PatroniConfigError> {
    if sent.config.len() > LONGEST_CONFIG || sent.stamp.len() > LONGEST_STAMP {
        return Err(PatroniConfigError::TooLong);
    }
    let found = patroni::digest(&sent.config);
    if found != sent.digest.to_ascii_lowercase() {
        return Err(PatroniConfigError::OtherConfig { expected: sent.digest.clone(), found });
    }
    if let Some(line) = foreign_line(&sent.config) {
        return Err(PatroniConfigError::Foreign(line));
    }
    match lines::flaw(&sent.config, address) {
        None => {}
        Some(Flaw::Twice { line }) => return Err(PatroniConfigError::Twice(line)),
        Some(Flaw::Device { line }) => return Err(PatroniConfigError::Device(line)),
        Some(Flaw::Missing(what)) => return Err(PatroniConfigError::Missing(what)),
        Some(Flaw::OtherAddress { line }) => return Err(PatroniConfigError::OtherAddress { line, own: address }),
    }
    tls::roots(&sent.etcd_trust).map_err(PatroniConfigError::Trust)?;
    // Every file has a place for each of them: see `lines::flaw`.
    let mut secrets = BTreeMap::new();
    for (name, value) in &sent.secrets {
        let secret = PgSecret::parse(name).ok_or_else(|| PatroniConfigError::UnknownSecret(name.clone()))?;
        if value.is_empty() || value.len() > LONGEST_SECRET {
            return Err(PatroniConfigError::UnusableSecret(secret.name()));
        }
        secrets.insert(secret, value.clone());
    }
    match PgSecret::ALL.into_iter().find(|secret| !secrets.contains_key(secret)) {
        Some(missing) => Err(MissingSecret(missing).into()),
        None => Ok(secrets),
    }
}

/// The directory of PostgreSQL's socket.
pub fn sockets(root: &Root, launcher: &Launcher) -> String {
    match launcher {
        Launcher::Unit(_) => UNIT_SOCKETS.to_owned(),
        Launcher::Child => patroni::sockets(&root.path().display().to_string()),
    }
}

/// The user that PostgreSQL runs as, by the name that PostgreSQL sees.
fn user(launcher: &Launcher) -> String {
    let own = rustix::process::geteuid();
    match launcher {
        Launcher::Unit(_) => POSTGRES_USER.to_owned(),
        Launcher::Child if own.is_root() => name(UNPRIVILEGED).unwrap_or_else(|| UNPRIVILEGED_NAME.to_owned()),
        Launcher::Child => name(own.as_raw()).unwrap_or_default(),
    }
}

fn name(user: u32) -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let of = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(user)).then(|| name.to_owned())
    };
    text.lines().find_map(of)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt as _;

    use raftsman_core::render::patroni::{Patroni, Programs};
    use raftsman_core::spec::postgres::NodeTags;
    use raftsman_core::spec::{Watchdog, WatchdogMode};

    use super::*;

    const ADDRESS: [u8; 4] = [127, 77, 3, 1];

    pub(crate) fn text() -> String {
        let settings = BTreeMap::from([("ttl".to_owned(), "20".to_owned())]);
        let watchdog = Watchdog { mode: WatchdogMode::Off, device: "/dev/watchdog".to_owned(), safety_margin: 5 };
        patroni::config(&Patroni {
            scope: "pg",
            namespace: "/service/",
            name: "pg-1",
            address: ADDRESS.into(),
            hosts: &BTreeSet::from([([127, 77, 3, 2], 2379).into(), ([127, 77, 3, 3], 2379).into()]),
            etcd_user: "pg-patroni-a",
            settings: &settings,
            nodes: &BTreeSet::from([ADDRESS.into()]),
            access: &[],
            balancers: &BTreeSet::new(),
            programs: Programs::Package(15),
            slot_wal_mib: 64,
            watchdog: &watchdog,
            tags: NodeTags::default(),
        })
    }

    fn sent(config: &str) -> Sent {
        let ca = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).expect("a certificate");
        let secrets =
            PgSecret::ALL.map(|secret| (secret.name().to_owned(), format!("{}-\"s{{root}}\\", secret.name())));
        Sent {
            config: config.to_owned(),
            digest: patroni::digest(config),
            secrets: secrets.into(),
            etcd_trust: ca.cert.pem(),
            stamp: "stamp".to_owned(),
        }
    }

    fn refused(sent: &Sent) -> String {
        let (_dir, root) = Root::scratch();
        let refused = write(&root, &Launcher::Child, ADDRESS.into(), sent).expect_err("refused").to_string();
        let written = std::fs::read_dir(root.path().join(DIR)).expect("list").count();
        assert_eq!(written, 1, "nothing but `versions`: {refused}");
        refused
    }

    #[test]
    fn the_file_is_written_with_its_secrets_and_reported_without() {
        let (_dir, root) = Root::scratch();
        let text = text();
        write(&root, &Launcher::Child, ADDRESS.into(), &sent(&text)).expect("written");
        assert_eq!(super::sent(&root).expect("read").as_deref(), Some(text.as_str()));
        assert_eq!(stamp(&root).expect("read").as_deref(), Some("stamp"));
        let filled = with_secrets(&root).expect("read").expect("there");
        assert!(!filled.contains("{secret") && !filled.contains("{root}"), "{filled}");
        for secret in PgSecret::ALL {
            use secrecy::ExposeSecret as _;
            let read = lines::secret(&filled, secret).expect("a secret");
            assert_eq!(read.expose_secret(), format!("{}-\"s{{root}}\\", secret.name()));
        }
        assert_eq!(lines::listeners(&text).len(), 2);
        assert_eq!(patroni::hosts(&text), patroni::hosts(&filled));
        for private in [Program::Patroni.files(&root).config(), sent_file(&root), stamp_file(&root)] {
            let mode = std::fs::metadata(&private).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", private.display());
        }
    }

    #[test]
    fn what_raftsman_does_not_write_is_refused() {
        let good = text();
        let with = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            sent(&good.replacen(from, to, 1))
        };
        for (sent, why) in [
            (
                with("name: \"pg-1\"\n", "name: \"pg-1\"\nbootstrap_command: \"/bin/sh\"\n"),
                "line 4 of Patroni's file is none",
            ),
            (with("  data_dir: \"{root}/postgres/data\"", "  data_dir: \"/etc\""), "is none that raftsman writes"),
            // Each line is raftsman's; the file is not.
            (with("  verify_client: \"required\"\n", ""), "`restapi/verify_client` is missing"),
            (with("  protocol: \"https\"\n", ""), "`etcd3/protocol` is missing"),
            (with("    - \"host all all all reject\"\n", ""), "`postgresql/pg_hba` is missing"),
            (with("  mode: \"off\"", "  mode: \"required\""), "a watchdog would reset this computer"),
            (with("  mode: \"off\"\n", ""), "a watchdog would reset this computer"),
            (with("  device: \"/dev/watchdog\"", "  device: \"/dev/sda\""), "names a device that is none"),
            (with("  device: \"/dev/watchdog\"", "  device: \"/dev/shm/x\""), "names a device that is none"),
            (
                with("  listen: \"127.77.3.1:8008\"", "  listen: \"127.77.3.9:8008\""),
                "has another address than this machine",
            ),
            (
                with("  connect_address: \"127.77.3.1:8008\"", "  connect_address: \"192.0.2.1:8008\""),
                "has another address",
            ),
        ] {
            let refused = refused(&sent);
            assert!(refused.contains(why), "{why}: {refused}");
        }
        let again = format!("{good}restapi:\n  listen: \"127.77.3.1:8008\"\n");
        assert!(refused(&sent(&again)).contains("for the second time"));
        let mut other = sent(&good);
        other.digest = patroni::digest("");
        assert!(refused(&other).contains("the call says"));
    }

    #[test]
    fn secrets_are_exactly_those_of_the_file() {
        let mut missing = sent(&text());
        missing.secrets.remove("rest");
        assert!(refused(&missing).starts_with("the secret `rest` of Patroni's file is missing"));
        let mut more = sent(&text());
        more.secrets.insert("root".to_owned(), "x".to_owned());
        assert_eq!(refused(&more), "Patroni's file has no place for a secret `root`: nothing was written");
        let mut empty = sent(&text());
        empty.secrets.insert("rest".to_owned(), String::new());
        assert!(refused(&empty).contains("`rest` is empty"));
        let mut trust = sent(&text());
        trust.etcd_trust = "no certificate".to_owned();
        assert!(refused(&trust).contains("cannot be used"));
    }
}
