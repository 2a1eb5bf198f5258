//! `raftsman backup now`, `list`, `show`, `copy` and `verify`.

use std::process::ExitCode;

use raftsman_engine::backup::keys;
use raftsman_engine::fleet::directory_of;
use raftsman_engine::ops::OpError;
use raftsman_engine::ops::backup::{Target, Which, copy, list, now, show, verify};
use serde_json::json;

use super::upkeep::locked;
use crate::args::{Backup, Common};
use crate::exit::{Failure, OK};
use crate::moving::Moving;
use crate::setting::{open, read_file, read_spec, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Backup) -> Result<ExitCode, Failure> {
    let fleet = || -> Result<_, Failure> { open(read_file(common)?, setting(common)?) };
    match args {
        Backup::Now { cluster, json } => {
            let (fleet, lock) = locked(common, "backup")?;
            let moving = Moving::new(*json);
            let taken = now(&fleet, lock, cluster.as_deref(), &|progress| moving.hear(progress)).await;
            moving.end();
            let taken = taken?;
            match json {
                true => view::print_json_line(&json!({ "event": "backed_up", "backup": taken })),
                false => view::print(&view::backup::taken(&taken, Paint::of_stdout())),
            }
        }
        Backup::List { cluster, json } => {
            let listing = list(&fleet()?, cluster.as_deref()).await?;
            match json {
                true => view::print_json(&listing)?,
                false => view::print(&view::backup::listing(&listing, jiff::Timestamp::now(), Paint::of_stdout())),
            }
        }
        Backup::Show { backup, cluster, json } => {
            let shown = show(&fleet()?, cluster.as_deref(), backup.as_deref()).await?;
            match json {
                true => view::print_json(&shown)?,
                false => view::print(&view::backup::shown(&shown, Paint::of_stdout())),
            }
        }
        Backup::Copy { backup, to, to_store_of, snapshot, cluster, key, json } => {
            let keys = keys(key).map_err(OpError::from)?;
            let other = to_store_of.as_deref().map(|file| Ok::<_, Failure>((file, read_spec(file)?))).transpose()?;
            let target = match (to, &other, snapshot) {
                (Some(directory), ..) => Target::Directory(directory),
                (_, Some((file, spec)), _) => {
                    let none = || Failure::other(format!("{} says of no store for backups", file.display()));
                    Target::Store { settings: spec.backups.as_ref().ok_or_else(none)?, base: directory_of(file) }
                }
                (.., Some(file)) if file.exists() => {
                    return Err(Failure::other(format!("{} is there already: name a new file", file.display())));
                }
                (.., Some(file)) => Target::File(file),
                (None, None, None) => return Err(Failure::other("say where to: see `raftsman backup copy --help`")),
            };
            let moving = Moving::new(*json);
            let hear = |progress| moving.hear(progress);
            let copied = copy(&fleet()?, cluster.as_deref(), backup.as_deref(), target, &keys, &hear).await;
            moving.end();
            let copied = copied?;
            match json {
                true => view::print_json_line(&json!({ "event": "copied", "copy": copied })),
                false => view::print(&view::backup::copied(&copied, Paint::of_stdout())),
            }
        }
        Backup::Verify { backup, all, cluster, key, json } => {
            let keys = keys(key).map_err(OpError::from)?;
            let which = match backup {
                Some(name) => Which::Named(name),
                None if *all => Which::All,
                None => Which::Newest,
            };
            let moving = Moving::new(*json);
            let verified = verify(&fleet()?, cluster.as_deref(), which, &keys, &|progress| moving.hear(progress)).await;
            moving.end();
            let verified = verified?;
            match json {
                true => view::print_json_line(&json!({ "event": "verified", "backups": verified })),
                false => view::print(&view::backup::verified(&verified, Paint::of_stdout())),
            }
            if verified.iter().any(|one| one.verdict == "damaged") {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(OK)
}
