//! `raftsman psql`.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use raftsman_engine::ops::psql::psql;

use crate::args::{Common, Psql};
use crate::context::{context, open, read_file};
use crate::exit::Failure;

/// Becomes `psql`, so that signals and the exit code are its own.
pub(super) async fn run(common: &Common, args: &Psql) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let fleet = open(spec, context(common)?).await?;
    let found = psql(&fleet, args.cluster.as_deref()).await?;
    let mut command = Command::new(&found.program);
    command.arg("--host").arg(&found.socket).args(["--username", found.user]);
    if !args.arguments.iter().any(|one| one == "-d" || one.starts_with("--dbname")) {
        command.args(["--dbname", found.user]);
    }
    let error = command.args(&args.arguments).exec();
    Err(Failure::other(format!(
        "cannot run {}: {error}; it is in Debian's package postgresql-client",
        found.program.display()
    )))
}
