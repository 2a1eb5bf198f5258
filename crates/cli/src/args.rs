//! What may be written on the command line.

mod backup;
mod cert;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::backup::{Accept, Backup, Drill, Restore, Unsigned};
pub(crate) use self::cert::{AgentRole, Cert, Revoke, Rotate, RotateSide};

/// Provisions and operates highly available etcd clusters.
///
/// One file describes the desired state; `plan` shows the steps to it, each with the number of members that the
/// cluster can lose meanwhile; `apply` carries them out, one safe wave at a time.
#[derive(Debug, Parser)]
#[command(name = "raftsman", version, about, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  raftsman init                 a file and its state in this directory
  raftsman apply                from nothing to a healthy cluster
  eval \"$(raftsman env)\"        then: etcdctl put greeting hello
  raftsman status               member status
  raftsman destroy              nothing left behind")]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// The file that describes the desired state.
    #[arg(short, long, global = true, default_value = "raftsman.yaml", value_name = "FILE", env = "RAFTSMAN_FILE")]
    pub(crate) file: PathBuf,
    /// An age identity that opens the state's secrets, when it is not kept in the state.
    #[arg(long, global = true, value_name = "FILE", env = "RAFTSMAN_IDENTITY")]
    pub(crate) identity: Option<PathBuf>,
    /// A file with the passphrase of the identity. Without it you are asked.
    #[arg(long, global = true, value_name = "FILE", env = "RAFTSMAN_PASSPHRASE_FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// The agent's binary for machines on this computer. Found beside this command by default.
    #[arg(long, global = true, value_name = "FILE", env = "RAFTSMAN_AGENT", hide_short_help = true)]
    pub(crate) agent_binary: Option<PathBuf>,
    /// No warnings about the file. Errors are always shown.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// How long to wait for another command that changes the same cluster or fleet. By default it is an error at once.
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, env = "RAFTSMAN_LOCK_TIMEOUT")]
    pub(crate) lock_timeout: Option<Duration>,
    /// When to use colours.
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, hide_short_help = true)]
    pub(crate) color: When,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Write a file to start from, and make the state beside it.
    Init(Init),
    /// Write a file for a running cluster that raftsman did not create; nothing in it is changed.
    Adopt(Adopt),
    /// Check the file; every error at once, with its place, its reason and a remedy.
    Check(Check),
    /// Print the JSON schema of the file, for editors.
    Schema,
    /// Explain a key of the file: its meaning, its values, an example.
    Explain(Explain),
    /// Show what `apply` would do, step by step, with the fault tolerance of each.
    Plan(Plan),
    /// Carry out what `plan` shows, until every cluster is as the file says.
    Apply(Apply),
    /// Show the status of every cluster, member and node.
    Status(Status),
    /// Measure disks and network, and check heartbeat and election time-outs against them.
    Preflight(Preflight),
    /// Show the running versions, the wanted versions, and the upgrade path.
    Versions(Versions),
    /// Show the version of this program, and of every agent where there is a file.
    Version(Version),
    /// Delete the machines with their data, and the state.
    Destroy(Destroy),
    /// Check the state of every cluster, or repair it.
    #[command(subcommand)]
    State(State),
    /// Print the command that enrolls a host manually, where raftsman has no SSH access.
    Join(Join),
    /// Replace a member: it is removed with its data, and a new one of its name gets all data from the others.
    Replace(Replace),
    /// Recover a cluster from one surviving member, when its majority is lost for good.
    Recover(Recover),
    /// Replace all data of a cluster with a backup: the newest, or up to a revision or a time.
    Restore(Restore),
    /// Test the newest backup: restore it into a temporary etcd, and compare.
    Drill(Drill),
    /// Compare what the members hold, and name one that differs.
    Verify(Verify),
    /// Make the members' database files as small as their data, one at a time, the leader last.
    Defrag(Defrag),
    /// Compact history: overwritten and deleted values can no longer be read or watched.
    Compact(Compact),
    /// Transfer leadership to a member.
    MoveLeader(MoveLeader),
    /// Have a synchronous standby of a PostgreSQL cluster take the primary's place.
    Switchover(Switchover),
    /// Give Patroni another user of etcd, and delete the one it has.
    RotateUser(RotateUser),
    /// Show past steps: when, by which operator, and how they ended.
    Journal(Journal),
    /// Print what `etcdctl`, or a client of PostgreSQL, needs, for `eval`.
    Env(Env),
    /// Run `psql` as the superuser, on the primary of a PostgreSQL cluster of this computer.
    Psql(Psql),
    /// List certificates, issue client certificates, rotate CAs.
    #[command(subcommand)]
    Cert(Cert),
    /// Make, list, verify, copy and prune backups.
    #[command(subcommand)]
    Backup(Backup),
    /// Show the last lines of a machine's log: etcd's, Patroni's, HAProxy's or the agent's.
    Logs(Logs),
    /// Print completions for a shell.
    #[command(
        after_help = "Example:\n  raftsman completions bash > ~/.local/share/bash-completion/completions/raftsman"
    )]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Print the names that a verb takes, for completions.
    #[command(hide = true)]
    Names {
        /// Which verb.
        verb: String,
    },
    /// Write the manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// Where.
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  raftsman init                                   three members, etcd from the PATH
  raftsman init --members 5 --etcd /opt/etcd/etcd this binary, with its version
  raftsman init --with postgres                   and three nodes of PostgreSQL on it
  raftsman init --passphrase                      the state's secrets behind a passphrase")]
pub(crate) struct Init {
    /// The fleet's name.
    #[arg(long, default_value = "lab")]
    pub(crate) fleet: String,
    /// How many members the cluster `main` has.
    #[arg(long, default_value_t = 3)]
    pub(crate) members: u32,
    /// The etcd binary, when it is not on the PATH.
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd: Option<PathBuf>,
    /// What else the file has.
    #[arg(long, value_name = "WHAT")]
    pub(crate) with: Option<With>,
    /// Protect the state's secrets by a passphrase instead of a file with mode 0600.
    #[arg(long)]
    pub(crate) passphrase: bool,
}

/// What a new file may have besides etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum With {
    /// A PostgreSQL cluster `app` of three nodes.
    Postgres,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Nothing in the cluster is changed. Afterwards `raftsman plan` lists what differs from the file, and `raftsman status`
shows the members. Run it on the members' computer, as their user, to read their flags as well.

Example:
  raftsman adopt --endpoints https://127.0.0.1:2379 --cacert ca.crt --cert root.crt --key root.key")]
pub(crate) struct Adopt {
    /// URLs of members, separated by commas; one that answers is enough.
    #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
    pub(crate) endpoints: Vec<String>,
    /// The authority that signed the members' certificates.
    #[arg(long, value_name = "FILE")]
    pub(crate) cacert: PathBuf,
    /// A client certificate to show; best one of `root`.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// The key of the client certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// The user to log in as, where users log in by password. raftsman works as `root`.
    #[arg(long, default_value = "root", value_parser = ["root"])]
    pub(crate) user: String,
    /// A file with the password of that user.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// The key of that authority, for raftsman to sign certificates of clients.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_key: Option<PathBuf>,
    /// The authority that signed the members' certificates for each other.
    #[arg(long, value_name = "FILE", requires = "peer_ca_key")]
    pub(crate) peer_cacert: Option<PathBuf>,
    /// The key of that authority.
    #[arg(long, value_name = "FILE", requires = "peer_cacert")]
    pub(crate) peer_ca_key: Option<PathBuf>,
    /// The cluster's name in the file.
    #[arg(long, default_value = "main")]
    pub(crate) name: String,
    /// The fleet's name in the file.
    #[arg(long, default_value = "adopted")]
    pub(crate) fleet: String,
    /// The file to write; that of --file by default.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print all that was found as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Print the diagnostics as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Treat warnings as errors.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  raftsman explain                      the keys of the file
  raftsman explain etcd.main            those of a cluster; any name will do
  raftsman explain etcd.main.quota      one of them")]
pub(crate) struct Explain {
    /// The key, with dots between its parts.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) key: String,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes with --detailed-exitcode: 0 nothing to do, 1 error or not reachable, 2 there is something to do.")]
pub(crate) struct Plan {
    /// Only these clusters.
    #[arg(value_name = "CLUSTER")]
    pub(crate) clusters: Vec<String>,
    /// Print the plan as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show how the configuration files of etcd, HAProxy and keepalived would change.
    #[arg(long)]
    pub(crate) diff: bool,
    /// Show how the next wave was decided: every pass of the planner in order, and its outcome.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Exit with 2 when there is something to do.
    #[arg(long)]
    pub(crate) detailed_exitcode: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It can be interrupted at any time: the next apply continues from what it observes then.

Examples:
  raftsman apply            shows the plan, asks, carries it out
  raftsman apply --yes      without asking, for pipelines
  raftsman apply main       only the cluster `main`")]
pub(crate) struct Apply {
    /// Only these clusters.
    #[arg(value_name = "CLUSTER")]
    pub(crate) clusters: Vec<String>,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up on a cluster that made no progress for this long.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 all is as it should be, 1 error, 2 something is not.

Examples:
  raftsman status                   once
  raftsman status --watch           every 2 seconds, until Ctrl-C
  raftsman status --watch=10s main  only the cluster `main`, every 10 seconds")]
pub(crate) struct Status {
    /// Only these clusters.
    #[arg(value_name = "CLUSTER")]
    pub(crate) clusters: Vec<String>,
    /// Print the status as JSON; with --watch as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it again and again, until Ctrl-C.
    #[arg(
        short, long, value_name = "TIME", value_parser = duration, num_args = 0..=1, require_equals = true,
        default_missing_value = "2s"
    )]
    pub(crate) watch: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 all run what the file wants, 1 error, 2 something does not.")]
pub(crate) struct Versions {
    /// Only these clusters.
    #[arg(value_name = "CLUSTER")]
    pub(crate) clusters: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every machine makes some small durable writes and connects to the others, one machine after the other, while etcd
keeps running. Exit codes: 0 the timers suit, 1 error, 2 they put the cluster at risk.

Examples:
  raftsman preflight            every cluster
  raftsman preflight --save     `plan` and `status` report it, and `timers: measured` is derived from it")]
pub(crate) struct Preflight {
    /// Only these clusters.
    #[arg(value_name = "CLUSTER")]
    pub(crate) clusters: Vec<String>,
    /// Save the measurement.
    #[arg(long)]
    pub(crate) save: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Destroy {
    /// Only these clusters; without any, everything and the state too.
    #[arg(value_name = "CLUSTER")]
    pub(crate) clusters: Vec<String>,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A member is replaced only while the others are a majority. What only a member that is down has is lost.

Examples:
  raftsman replace main-2               shows what will happen, asks, does it
  raftsman replace main-2 --mark-only   the next apply does it")]
pub(crate) struct Replace {
    /// Which member, such as `main-2`.
    pub(crate) member: String,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Only write down that it is to be replaced: the next apply does it.
    #[arg(long)]
    pub(crate) mark_only: bool,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up when there was no progress for this long.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Only for a cluster that has lost its majority for good: writes that only the lost members had are lost. It shows what is
left, recommends the survivor that loses least, and asks. Revisions jump up, so that watchers notice. The old data is put
aside on the machines, below etcd/removed.

Examples:
  raftsman recover                       shows what is left, asks, does it
  raftsman recover --show                only shows what is left
  raftsman recover --lost main-3         main-3 is gone for good (it cannot be reached)")]
pub(crate) struct Recover {
    /// Which cluster; needed when the file has several.
    pub(crate) cluster: Option<String>,
    /// A member that cannot be reached and is gone for good. May be given several times.
    #[arg(long, value_name = "MEMBER")]
    pub(crate) lost: Vec<String>,
    /// Build it around this survivor, not around the one that loses least.
    #[arg(long, value_name = "MEMBER")]
    pub(crate) from: Option<String>,
    /// Only show what is left.
    #[arg(long, conflicts_with = "yes")]
    pub(crate) show: bool,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print JSON; what happens follows as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up when there was no progress for this long.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every member reads its whole database for it. Exit codes: 0 all hold the same data, 1 one differs or an error, 2 not
known, because a member does not answer.")]
pub(crate) struct Verify {
    /// Only these clusters.
    #[arg(value_name = "CLUSTER")]
    pub(crate) clusters: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A member answers no client while its database is rewritten, and its disk must have room for the new file. Followers
come first; the leader transfers leadership before its turn. Nothing is done while a member is down, nor where less
than a tenth of the file, or less than 1 MiB, is free.

Examples:
  raftsman defrag                   every member of the only cluster that has enough free space in its file
  raftsman defrag --all             every member
  raftsman defrag --member main-2   one member")]
pub(crate) struct Defrag {
    /// Which cluster; may be left out when there is only one.
    #[arg(value_name = "CLUSTER")]
    pub(crate) cluster: Option<String>,
    /// Only this member.
    #[arg(long, value_name = "MEMBER", conflicts_with = "all")]
    pub(crate) member: Option<String>,
    /// Also where little space would be freed.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The files stay as large as they are: `raftsman defrag` makes them smaller.

Examples:
  raftsman compact                  all history
  raftsman compact --keep 10000     all but the last 10,000 revisions")]
pub(crate) struct Compact {
    /// Which cluster; may be left out when there is only one.
    #[arg(value_name = "CLUSTER")]
    pub(crate) cluster: Option<String>,
    /// Drop what is older than this revision.
    #[arg(long, value_name = "REVISION", conflicts_with = "keep")]
    pub(crate) revision: Option<i64>,
    /// Keep this number of the last revisions.
    #[arg(long, value_name = "REVISIONS", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) keep: Option<i64>,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MoveLeader {
    /// To which member, such as `main-2`.
    pub(crate) member: String,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A second user is made; every node takes it up by a reload and is seen at etcd with it; then the
first one is deleted, and with it the password that may have leaked. PostgreSQL is not touched.

Examples:
  raftsman rotate-user          shows what will happen, asks, does it
  raftsman rotate-user app      where the file has several PostgreSQL clusters")]
pub(crate) struct RotateUser {
    /// Which PostgreSQL cluster; may be left out when there is only one.
    #[arg(value_name = "CLUSTER")]
    pub(crate) cluster: Option<String>,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up when there was no progress for this long.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Writes stop for a few seconds, and sessions on the primary end. Only a synchronous standby takes its place: it has every
commit that was acknowledged. Without --to it is the one that a plan would choose.

Examples:
  raftsman switchover app               shows what will happen, asks, does it
  raftsman switchover app --to app-2    to this node")]
pub(crate) struct Switchover {
    /// Which PostgreSQL cluster; may be left out when there is only one.
    #[arg(value_name = "CLUSTER")]
    pub(crate) cluster: Option<String>,
    /// To which node, such as `app-2`.
    #[arg(long, value_name = "NODE")]
    pub(crate) to: Option<String>,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up when it is not known for this long how it ended.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Journal {
    /// Only this cluster.
    #[arg(value_name = "CLUSTER")]
    pub(crate) cluster: Option<String>,
    /// How many of the last lines.
    #[arg(short = 'n', long, default_value_t = 50)]
    pub(crate) last: usize,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Put raftsman-agent on the host, paste the line that this prints, then `raftsman apply`.
The line is good for one use, within the time that --valid-for gives.

Example:
  raftsman join db2")]
pub(crate) struct Join {
    /// Which host, by its name in the file.
    pub(crate) host: String,
    /// How long the host may take to join.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration)]
    pub(crate) valid_for: Duration,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  eval \"$(raftsman env)\" && etcdctl member list
  eval \"$(raftsman env --via front)\" && etcdctl get --prefix /   through the balancer `front`
  eval \"$(raftsman env app)\" && psql -U shop shop                  the primary of the PostgreSQL cluster `app`")]
pub(crate) struct Env {
    /// Which cluster, of etcd or of PostgreSQL; may be left out when there is only one of etcd.
    #[arg(value_name = "CLUSTER")]
    pub(crate) cluster: Option<String>,
    /// Connect through this balancer of the file: to the members, or to the primary.
    #[arg(long, value_name = "BALANCER")]
    pub(crate) via: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  raftsman psql app                                the superuser's session on the primary of `app`
  raftsman psql app -- -c 'select version()'       one statement")]
pub(crate) struct Psql {
    /// Which PostgreSQL cluster; may be left out when there is only one.
    #[arg(value_name = "CLUSTER")]
    pub(crate) cluster: Option<String>,
    /// Arguments of `psql`. The database is `postgres` where they name none.
    #[arg(last = true)]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  raftsman logs main-1              the last 50 lines of etcd's log
  raftsman logs main-1 -f           those, and what is added, until Ctrl-C
  raftsman logs main-1 --agent      the log of the machine's agent
  raftsman logs app-1               Patroni's log with PostgreSQL's, on a node of a PostgreSQL cluster
  raftsman logs front-1             HAProxy's log, on a machine that a balancer has to itself")]
pub(crate) struct Logs {
    /// Which machine, such as `main-1`.
    pub(crate) machine: String,
    /// Show what is added to it, until Ctrl-C.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The file that describes the desired state.
    // The same option as everywhere, but for its short form: `-f` follows here.
    #[arg(long, value_name = "FILE")]
    #[allow(dead_code, reason = "clap hands it on to the option of every verb")]
    file: Option<PathBuf>,
    /// Show the agent's log instead of etcd's, Patroni's or HAProxy's.
    #[arg(long, conflicts_with = "balancer")]
    pub(crate) agent: bool,
    /// Show HAProxy's log, where a balancer runs beside members.
    #[arg(long)]
    pub(crate) balancer: bool,
    /// How many lines.
    #[arg(short = 'n', long, default_value_t = 50)]
    pub(crate) lines: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum State {
    /// Check the ledger of every cluster, and show what can be restored where it is damaged.
    Check {
        /// Only these clusters.
        clusters: Vec<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Restore a lost or damaged ledger from its history, or rebuild it from the machines.
    Repair {
        /// Only these clusters.
        clusters: Vec<String>,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = raftsman_core::spec::Duration::parse(text).map_err(|e| e.to_string())?;
    Ok(Duration::from_millis(parsed.as_millis()))
}

/// A moment, or how long ago it was.
fn moment(text: &str) -> Result<jiff::Timestamp, String> {
    moment_at(text, jiff::Timestamp::now())
}

fn moment_at(text: &str, now: jiff::Timestamp) -> Result<jiff::Timestamp, String> {
    let Some(ago) = text.strip_suffix("-ago") else {
        return text.parse().map_err(|_| "expected a moment such as 2026-11-16T07:00:00Z, or 10m-ago".to_owned());
    };
    let before = |ago: Duration| now.checked_sub(jiff::SignedDuration::try_from(ago).ok()?).ok();
    before(duration(ago)?).ok_or_else(|| "that is too long ago".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn moments() {
        let now: jiff::Timestamp = "2026-11-16T07:00:00Z".parse().unwrap();
        let at = |text: &str| super::moment_at(text, now).map(|at| at.to_string());
        assert_eq!(at("10m-ago").as_deref(), Ok("2026-11-16T06:50:00Z"));
        assert_eq!(at("1h30m-ago").as_deref(), Ok("2026-11-16T05:30:00Z"));
        assert_eq!(at("2026-11-15T07:00:00Z").as_deref(), Ok("2026-11-15T07:00:00Z"));
        assert_eq!(at("yesterday"), Err("expected a moment such as 2026-11-16T07:00:00Z, or 10m-ago".to_owned()));
        assert!(at("soon-ago").is_err() && at("10m").is_err());
    }

    /// `-f` is `--file` for every verb but `logs`, where it is `--follow`.
    #[test]
    fn f_follows_in_logs() {
        use clap::Parser as _;
        let parse = |line: &str| super::Arguments::try_parse_from(line.split(' ')).map_err(|e| e.to_string());
        let logs = |line: &str| match parse(line).unwrap() {
            super::Arguments { common, verb: super::Verb::Logs(logs) } => (logs.follow, common.file),
            other => panic!("{other:?}"),
        };
        assert_eq!(logs("raftsman logs m -f"), (true, "raftsman.yaml".into()));
        assert_eq!(logs("raftsman logs m -f --file x.yaml"), (true, "x.yaml".into()));
        assert_eq!(logs("raftsman -f x.yaml logs m"), (false, "x.yaml".into()));
        assert_eq!(parse("raftsman plan -f x.yaml").unwrap().common.file, std::path::PathBuf::from("x.yaml"));
    }

    #[test]
    fn the_definition_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
