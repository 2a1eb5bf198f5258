//! `raftsman init`.

use std::path::Path;
use std::process::ExitCode;

use raftsman_core::spec::{EtcdVersion, Name, PostgresVersion};
use raftsman_engine::artifacts::version_of;
use raftsman_engine::ops::init::{
    Choices, PASSWORD_FILE, file, installed_postgres, lacks_bundle, make_password, make_state, write_file,
};
use raftsman_engine::store::Protection;
use secrecy::ExposeSecret as _;

use crate::args::{Common, Init, With};
use crate::context::{ask_passphrase, context};
use crate::exit::{Failure, OK};
use crate::view;

pub(super) async fn run(common: &Common, args: &Init) -> Result<ExitCode, Failure> {
    Name::parse(&args.fleet).map_err(|e| Failure::usage(format!("--fleet: {e}")))?;
    if !(1..=9).contains(&args.members) {
        return Err(Failure::usage("--members: a cluster has 1 to 9 members, best an odd number"));
    }
    if common.file.exists() {
        return Err(Failure::other(format!("{} is there already: it stays as it is", common.file.display())));
    }
    let context = context(common)?;
    let (version, source, found) = etcd(args.etcd.as_deref())?;
    let mut choices = Choices { fleet: args.fleet.clone(), members: args.members, version, source, postgres: None };
    let mut notes = vec![found];
    if let Some(With::Postgres) = args.with {
        let installed = installed_postgres();
        let major = installed.unwrap_or(PostgresVersion::default().major);
        notes.push(match installed {
            Some(major) => format!("PostgreSQL {major} from Debian's package postgresql-{major}"),
            None => format!("no PostgreSQL on this computer yet: `sudo apt install postgresql-{major}`"),
        });
        choices.postgres = Some(major);
    }
    let text = file(&choices);
    if choices.postgres.is_some() {
        notes.extend(lacks_bundle(&text, &context));
    }
    let protection =
        if args.passphrase { Protection::Passphrase(new_passphrase(common)?) } else { Protection::IdentityFile };
    // The state first: a file without a state would look as if the state had been lost.
    make_state(&text, &context, protection).await?;
    if choices.postgres.is_some() {
        let path = context.base().join(PASSWORD_FILE);
        notes.push(match make_password(&path)? {
            true => format!("made {}: the password of PostgreSQL's role `app`", path.display()),
            false => format!("{} is there already: it is the password of PostgreSQL's role `app`", path.display()),
        });
    }
    write_file(&common.file, &text)?;
    view::print(&format!(
        "wrote {}: {} of etcd{} on this computer\nmade .raftsman: keys and state of this fleet; keep it, and keep it \
         private\n{}\nnext: raftsman plan, raftsman apply\n",
        common.file.display(),
        if args.members == 1 { "1 member".to_owned() } else { format!("{} members", args.members) },
        if choices.postgres.is_some() { " and 3 nodes of PostgreSQL" } else { "" },
        notes.join("\n"),
    ));
    Ok(OK)
}

/// The version and the `source:` of the binary that was named, or that is on the PATH.
fn etcd(named: Option<&Path>) -> Result<(Option<EtcdVersion>, Option<String>, String), Failure> {
    if let Some(path) = named {
        let path = std::path::absolute(path)?;
        let version = version_of(&path)?;
        let source = format!("{{ file: {} }}", serde_json::to_string(&path.display().to_string())?);
        return Ok((Some(version), Some(source), format!("etcd {version} from {}", path.display())));
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&search).map(|dir| dir.join("etcd")).find(|p| p.is_file());
    Ok(match on_path.map(|path| (version_of(&path), path)) {
        Some((Ok(version), path)) => (Some(version), None, format!("etcd {version} from {}", path.display())),
        _ => (
            None,
            None,
            "no etcd on the PATH yet: install it, or say where it is with `source:` (docs/guide/etcd-binaries.md)"
                .to_owned(),
        ),
    })
}

fn new_passphrase(common: &Common) -> Result<secrecy::SecretString, Failure> {
    if let Some(given) = context(common)?.passphrase {
        return Ok(given);
    }
    let ask = |prompt| ask_passphrase(prompt).map_err(Failure::other);
    let first = ask("New passphrase of the state: ")?;
    let second = ask("Once more: ")?;
    if first.expose_secret() != second.expose_secret() {
        return Err(Failure::other("the two are not the same"));
    }
    if first.expose_secret().is_empty() {
        return Err(Failure::other("an empty passphrase protects nothing"));
    }
    Ok(first)
}
