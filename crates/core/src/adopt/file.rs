//! What was seen of a cluster → the text of a file that describes it, and what the file cannot say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Finding, Found, Weight};
use crate::observed::{Access, Granted, Password, ROOT};
use crate::spec::{self, AuthMode, EtcdVersion, Keys, Name, Permission};

/// What the command line adds to what was seen.
#[derive(Debug, Clone)]
pub struct Choices {
    /// The fleet's name.
    pub fleet: Name,
    /// The cluster's name.
    pub cluster: Name,
    /// A file with the password of `root`, as the new file should refer to it.
    pub root_password: Option<String>,
    /// The clients' authority and its key, where its key is brought: two files.
    pub clients: Option<(String, String)>,
    /// The peers' authority and its key, where its key is brought: two files.
    pub peers: Option<(String, String)>,
}

/// A file, and what could not be said in it.
#[derive(Debug, Clone)]
pub struct Drafted {
    /// Its text.
    pub text: String,
    /// What it leaves out.
    pub left_out: Vec<Finding>,
}

/// Writes the file.
pub fn draft(found: &Found, choices: &Choices) -> Drafted {
    let mut left_out = Vec::new();
    let mut text = format!(
        "# Written by `raftsman adopt` on {}: a cluster that raftsman did not create, as it was found.\n\
         # raftsman observes it, and changes only the roles and users that you change here.\n",
        found.at.strftime("%Y-%m-%d")
    );
    let local = found.members.iter().all(|m| m.address.is_none_or(|address| address.is_loopback()));
    let provider = if local { "local" } else { "hosts" };
    let _ = write!(
        text,
        "fleet: {}\nmachines:\n  provider: {provider}\netcd:\n  {}:\n    members:\n",
        choices.fleet, choices.cluster
    );
    members(&mut text, found);
    let mut versions: Vec<EtcdVersion> =
        found.members.iter().filter_map(|m| m.status.as_ref().ok()).map(|status| status.version).collect();
    versions.sort();
    // A file without a version would stand for the newest, and no member has reported which one runs.
    let _ = match versions.first() {
        Some(version) => writeln!(text, "    version: {version}"),
        None => writeln!(text, "    version: # no member said which version it runs: write it here"),
    };
    if let Some(program) = the_same(found.members.iter().map(|m| m.process.as_ref().and_then(|p| p.program.clone()))) {
        let _ = writeln!(text, "    source: {{ file: {} }}", quoted(&program));
    }
    let flag = |name: &str| {
        let given = |m: &super::Member| m.process.as_ref().and_then(|p| p.settings.get(name).cloned());
        the_same(found.members.iter().map(given))
    };
    if let Some(token) = flag("initial-cluster-token") {
        let _ = writeln!(text, "    token: {}", quoted(&token));
    }
    auth(&mut text, found, choices);
    // For the names of settings only.
    let version = versions.first().copied().unwrap_or_default();
    settings(&mut text, found, version, &mut left_out);
    authorities(&mut text, choices);
    match &found.access {
        Ok(access) => users(&mut text, access, &mut left_out),
        Err(error) => left_out.push(Finding::new(
            Weight::Note,
            "users-not-seen",
            None,
            format!("roles and users could not be listed: {error}"),
            "they are not in the file, and are left alone; adopt with credentials of `root` to list them",
        )),
    }
    Drafted { text, left_out }
}

/// The value that is the same wherever it is known; nothing where known values differ.
fn the_same<T: PartialEq>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let mut all = values.flatten();
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') && text.chars().all(plain);
    // What YAML reads as something else than a string.
    let other = ["true", "false", "null", "yes", "no", "on", "off"].contains(&text.to_ascii_lowercase().as_str());
    if word && !other { text.to_owned() } else { serde_json::Value::String(text.to_owned()).to_string() }
}

fn members(text: &mut String, found: &Found) {
    let addresses: Vec<_> = found.members.iter().filter_map(|m| m.address).collect();
    let apart = addresses.iter().collect::<BTreeSet<_>>().len() == found.members.len();
    if !apart {
        let _ =
            writeln!(text, "      # Their addresses are in the state: members that share one cannot be written here.");
    }
    for member in &found.members {
        let name = &member.listed.name;
        let _ = match member.address.filter(|_| apart) {
            Some(address) => writeln!(text, "      - {{ name: {name}, address: {} }}", quoted(&address.to_string())),
            None => writeln!(text, "      - name: {name}"),
        };
    }
}

fn auth(text: &mut String, found: &Found, choices: &Choices) {
    match (found.mode, &choices.root_password) {
        (AuthMode::Certificate | AuthMode::None, _) => text.push_str("    auth: { mode: certificate }\n"),
        (AuthMode::Password, Some(file)) => {
            let _ = writeln!(text, "    auth: {{ mode: password, root_password: {{ file: {} }} }}", quoted(file));
        }
        (AuthMode::Password, None) => text.push_str("    auth: { mode: password }\n"),
    }
}

/// Settings on which all members agree. What is not known has raftsman's default, and is said to be unknown.
fn settings(text: &mut String, found: &Found, version: EtcdVersion, left_out: &mut Vec<Finding>) {
    let all: Vec<BTreeMap<String, String>> = found.members.iter().map(super::Member::settings).collect();
    let agreed = |key: &str| the_same(all.iter().map(|settings| settings.get(key).cloned()));
    let mut unknown: Vec<&str> = Vec::new();
    let mut say = |key: &'static str, lines: &dyn Fn(&str) -> Option<String>| match agreed(key) {
        Some(value) => text.push_str(&lines(&value).unwrap_or_default()),
        None => unknown.push(key),
    };
    say("auto_compaction", &|value| {
        Some(match value.split_once(' ') {
            Some((mode, retention)) => format!("    auto_compaction: {{ mode: {mode}, retention: {retention} }}\n"),
            None => "    auto_compaction: { mode: periodic, retention: 0 }\n".to_owned(),
        })
    });
    say("quota", &|value| Some(format!("    quota: {value}\n")));
    say("timers.heartbeat", &|value| {
        Some(format!("    timers: {{ heartbeat: {value}, election: {} }}\n", agreed("timers.election")?))
    });
    say("corruption_checks.initial", &|initial| {
        let hash = agreed("corruption_checks.compact_hash").map(|hash| format!(", compact_hash: {hash}"));
        Some(format!("    corruption_checks: {{ initial: {initial}{} }}\n", hash.unwrap_or_default()))
    });
    say("log_level", &|value| Some(format!("    log_level: {value}\n")));
    // Only where it differs from the file's default.
    say("gateway", &|value| {
        let default = found.mode == AuthMode::Password;
        (value != default.to_string()).then(|| format!("    gateway: {value}\n"))
    });
    if version.minor_line() <= (3, 5) {
        say("v2_api", &|value| (value == "true").then(|| "    v2_api: true\n".to_owned()));
    }
    if !unknown.is_empty() {
        let _ = writeln!(
            text,
            "    # Not seen, or not the same everywhere, so that raftsman's default stands for it: {}.",
            unknown.join(", ")
        );
        left_out.push(Finding::new(
            Weight::Note,
            "settings-not-seen",
            None,
            format!("not seen, or not the same on every member: {}", unknown.join(", ")),
            "run `adopt` on the members' computer, as their user, to read their flags",
        ));
    }
    flags(text, &all, version, left_out);
}

fn flags(text: &mut String, all: &[BTreeMap<String, String>], version: EtcdVersion, left_out: &mut Vec<Finding>) {
    let names: BTreeSet<&String> =
        all.iter().flat_map(BTreeMap::keys).filter(|key| key.starts_with("flags.")).collect();
    let mut lines = String::new();
    for key in names {
        let name = key.trim_start_matches("flags.");
        // A member whose flags were seen, and that does not set this one, runs with its default.
        let known = all.iter().filter(|settings| settings.contains_key("timers.heartbeat"));
        let Some(value) = the_same(known.map(|settings| Some(settings.get(key)))).flatten() else {
            left_out.push(Finding::new(
                Weight::Warning,
                "flag-differs",
                None,
                format!("`{name}` is not the same on every member"),
                "the file has one value for all: choose it, and set it on the others",
            ));
            continue;
        };
        let number = value.parse::<i64>().is_ok() || ["true", "false"].contains(&value.as_str());
        let line = format!("{name}: {}", if number { value.clone() } else { quoted(value) });
        // The checks of the file decide whether it may be there.
        let tried = format!("fleet: f\netcd: {{ m: {{ members: 3, version: {version}, flags: {{ {line} }} }} }}\n");
        let reading = spec::read(&tried);
        match reading.diagnostics.iter().find(|d| d.is_error()) {
            None => {
                let _ = writeln!(lines, "      {line}");
            }
            Some(error) => left_out.push(Finding::new(
                Weight::Note,
                "flag-left-out",
                None,
                format!("`{name}` is {value}, and cannot be in the file: {}", error.message),
                "raftsman would run the members without it",
            )),
        }
    }
    if !lines.is_empty() {
        let _ = write!(text, "    flags:\n{lines}");
    }
}

fn authorities(text: &mut String, choices: &Choices) {
    if choices.clients.is_none() && choices.peers.is_none() {
        text.push_str(
            "    # The authorities' keys were not brought: raftsman trusts them and signs nothing. Once they can be used:\n\
             \x20   # ca: { clients: { brought: { certificate: ca.crt, key: { file: ca.key } } } }\n",
        );
        return;
    }
    text.push_str("    ca:\n");
    for (who, brought) in [("peers", &choices.peers), ("clients", &choices.clients)] {
        if let Some((certificate, key)) = brought {
            let _ = writeln!(
                text,
                "      {who}: {{ brought: {{ certificate: {}, key: {{ file: {} }} }} }}",
                quoted(certificate),
                quoted(key)
            );
        }
    }
}

fn users(text: &mut String, access: &Access, left_out: &mut Vec<Finding>) {
    let mut lines = String::new();
    let mut unsayable = Vec::new();
    let others = |name: &&String| name.as_str() != ROOT;
    for (name, role) in access.roles.iter().filter(|(name, _)| others(name)) {
        let _ = writeln!(lines, "      {}:{}", quoted(name), if role.permissions.is_empty() { " []" } else { "" });
        for granted in Vec::<Granted>::from(role.clone()) {
            match granted.keys.keys() {
                Some(keys) => {
                    let _ = writeln!(lines, "        - {}", permission(&Permission::of(granted.level, keys)));
                }
                None => unsayable.push(format!("role `{name}` may {granted}, which is no text")),
            }
        }
    }
    if !unsayable.is_empty() {
        left_out.push(Finding::new(
            Weight::Note,
            "roles-left-out",
            None,
            unsayable.join("; "),
            "roles and users are not in the file, and are left alone",
        ));
        return;
    }
    if lines.is_empty() {
        text.push_str("    roles: {}\n");
    } else {
        let _ = write!(text, "    roles:\n{lines}");
    }
    let users = || access.users.iter().filter(|(name, _)| others(name));
    let open: Vec<&str> =
        users().filter(|(_, user)| user.password != Password::None).map(|(name, _)| name.as_str()).collect();
    // Listing a user without its password would take the password away, and etcd does not reveal it.
    let mark = if open.is_empty() { "" } else { "# " };
    if !open.is_empty() {
        text.push_str(
            "    # Users are left alone until you uncomment them: the password of each goes into a file of its own.\n",
        );
        left_out.push(Finding::new(
            Weight::Note,
            "users-left-out",
            None,
            format!("users with passwords, which etcd does not disclose: {}", open.join(", ")),
            "to have them in the file, write each password to a file, and uncomment `users:`",
        ));
    }
    if users().next().is_none() {
        let _ = writeln!(text, "    {mark}users: {{}}");
        return;
    }
    let _ = writeln!(text, "    {mark}users:");
    for (name, user) in users() {
        let roles: Vec<String> = user.roles.iter().map(|role| quoted(role)).collect();
        let password = match user.password {
            Password::None => String::new(),
            _ => format!(", password: {{ file: {} }}", quoted(&format!("{name}.password"))),
        };
        let _ = writeln!(text, "    {mark}  {}: {{ roles: [{}]{password} }}", quoted(name), roles.join(", "));
    }
}

fn permission(permission: &Permission) -> String {
    let (level, keys) = permission.parts();
    let keys = match keys {
        Keys::Key(key) => format!("key: {}", quoted(key)),
        Keys::Prefix(prefix) => format!("prefix: {}", quoted(prefix)),
        Keys::From(key) => format!("from: {}", quoted(key)),
        Keys::Range(range) => format!("range: [{}, {}]", quoted(&range.from), quoted(&range.to)),
    };
    format!("{{ {level}: {{ {keys} }} }}")
}
