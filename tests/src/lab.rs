//! A directory, the real binaries → a fleet of real etcd servers on this computer, gone when the test ends.

pub mod agents;
pub mod engine;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use raftsman_engine::store::{LockInfo, Store};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Whether the long tests were asked for.
pub fn soak() -> bool {
    std::env::var_os("RAFTSMAN_SOAK").is_some_and(|v| !v.is_empty() && v != "0")
}

/// Sends a signal to a process that a test found; one that has ended meanwhile is fine.
pub fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Looks again and again until there is an answer. Machines are slow at times: the bound is for those that hang.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = look() {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "not after a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where `just lab` puts real etcd servers, one directory a version.
pub fn etcd_dir() -> PathBuf {
    std::env::var_os("RAFTSMAN_ETCD_DIR").map(PathBuf::from).expect("RAFTSMAN_ETCD_DIR: run `just lab` first")
}

/// `etcdctl`, from where `just lab` puts it.
pub fn etcdctl() -> PathBuf {
    std::env::var_os("RAFTSMAN_ETCDCTL").map(PathBuf::from).expect("RAFTSMAN_ETCDCTL: run `just lab` first")
}

/// Where `just lab-machines` puts the file system of real machines.
pub fn machines_dir() -> PathBuf {
    let lab = std::env::var_os("RAFTSMAN_LAB").map(PathBuf::from);
    let dir = lab.map(|lab| lab.join("machines")).filter(|dir| dir.join("machine.meta.tar").exists());
    dir.expect("RAFTSMAN_LAB with machines in it: run `just lab-machines` as root first")
}

/// A binary of this workspace, built in the profile that this test runs in.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let profile = test.ancestors().find(|p| p.join(name).is_file());
    profile.unwrap_or_else(|| panic!("{name} is not built: cargo build --release first")).join(name)
}

/// What a command printed and how it ended.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit code; -1 for a signal.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Panics unless it succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Panics unless it failed.
    #[track_caller]
    pub fn failed(self) -> Self {
        assert_ne!(self.code, 0, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Everything that it printed.
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr))
    }

    /// Standard output as lines of JSON.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }
}

/// What a command of ours printed, as text.
pub fn text(output: std::process::Output) -> Output {
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A fleet in a directory of its own. Destroyed when it is dropped, whatever became of it.
pub struct Lab {
    dir: tempfile::TempDir,
    user: Option<u32>,
    raftsman: Option<PathBuf>,
    agent: Option<PathBuf>,
}

impl Lab {
    /// A lab with this file.
    pub fn new(file: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("raftsman-lab-").tempdir().expect("a directory");
        std::fs::write(dir.path().join("raftsman.yaml"), file).expect("the file");
        Self { dir, user: None, raftsman: None, agent: None }
    }

    /// From now on this user, with no group but its own and the lab for its home, runs everything.
    pub fn run_as(&mut self, user: u32) {
        self.user = Some(user);
    }

    /// From now on this program is run in the place of raftsman; none for its own.
    pub fn use_raftsman(&mut self, raftsman: Option<PathBuf>) {
        self.raftsman = raftsman;
    }

    /// From now on this program is started in the place of the agent.
    pub fn use_agent(&mut self, agent: PathBuf) {
        self.agent = Some(agent);
    }

    /// The ledger of the cluster `main`, as it is in the state.
    pub fn ledger(&self) -> Value {
        let kept = engine::block_on(self.store().get_cluster::<Value>("main")).expect("a sound ledger");
        kept.expect("a ledger").value
    }

    /// Writes another ledger of the cluster `main`, as a raftsman that holds the lock would.
    pub fn change_ledger(&self, change: impl FnOnce(&mut Value)) {
        let store = self.store();
        let lock = engine::block_on(store.lock(LockInfo::new("test", "test", "test"))).expect("the lock");
        let kept = engine::block_on(store.get_cluster::<Value>("main")).expect("a sound ledger");
        let mut kept = kept.expect("a ledger");
        change(&mut kept.value);
        engine::block_on(store.put_cluster(&lock, "main", &kept.version, &kept.value)).expect("written");
    }

    fn store(&self) -> Store {
        let fleet = std::fs::read_to_string(self.path().join(".raftsman/fleet.json")).expect("a state");
        let fleet: Value = serde_json::from_str(&fleet).expect("JSON");
        let (dir, name) = (self.path().join(".raftsman"), fleet["name"].as_str().expect("a name"));
        engine::block_on(Store::open(&dir, name)).expect("a state")
    }

    /// A lab with one cluster `main` whose backups go into this directory, with further lines of that section. It runs.
    pub fn with_backups(members: usize, version: &str, store: &Path, further: &str) -> Self {
        let lab = Self::cluster(members, version, &[]);
        std::fs::create_dir_all(store).expect("a directory");
        lab.write_file(&format!("{}backups:\n  store: {{ directory: {store:?} }}\n{further}", lab.file()));
        lab.apply();
        lab
    }

    /// Waits until all that was written before this moment is in the store.
    pub fn covered(&self, since: jiff::Timestamp) {
        eventually("all changes are in the store", || {
            let covered = self.cluster_status()["backups"]["covered"].as_str()?.parse::<jiff::Timestamp>().ok()?;
            (covered > since).then_some(())
        });
    }

    /// A lab with one cluster `main`, and further lines of its section.
    pub fn cluster(members: usize, version: &str, further: &[&str]) -> Self {
        let mut file = format!(
            "fleet: lab\netcd:\n  main:\n    members: {members}\n    version: {version}\n    source: {{ directory: {:?} }}\n",
            etcd_dir()
        );
        for line in further {
            file.push_str(&format!("    {line}\n"));
        }
        Self::new(&file)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces the file.
    pub fn write_file(&self, file: &str) {
        std::fs::write(self.path().join("raftsman.yaml"), file).expect("the file");
    }

    /// The file's text.
    pub fn file(&self) -> String {
        std::fs::read_to_string(self.path().join("raftsman.yaml")).expect("the file")
    }

    /// The directory of a machine.
    pub fn machine(&self, name: &str) -> PathBuf {
        self.path().join(".raftsman/machines").join(name)
    }

    /// A command that is not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match self.user {
            None => Command::new(self.raftsman.clone().unwrap_or_else(|| binary("raftsman"))),
            Some(user) => {
                let mut command = Command::new("setpriv");
                let ids = [format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()];
                // The other user cannot read binaries below a home directory: the test has put copies into the lab.
                command.args(ids).arg("--").arg(self.path().join("bin/raftsman"));
                command.env("HOME", self.path()).env_remove("XDG_STATE_HOME");
                command
            }
        };
        command.args(arguments).current_dir(self.path()).stdin(Stdio::null()).env_remove("NO_COLOR");
        command.envs(self.agent.iter().map(|agent| ("RAFTSMAN_AGENT", agent)));
        command
    }

    /// Runs a verb to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        text(self.command(arguments).output().expect("raftsman runs"))
    }

    /// Starts a verb.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("raftsman starts")
    }

    /// Applies, and holds the forecast against what was done: they must be equal, wave by wave.
    #[track_caller]
    pub fn apply(&self) -> Vec<Value> {
        let lines = self.run(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
        forecast_equals_fact(&lines);
        lines
    }

    /// The status, as JSON.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.run(&["status", "--json"]).json()
    }

    /// The status, when nothing is left to do or to wait for.
    #[track_caller]
    pub fn settled(&self) -> Value {
        self.with_retries(&["status", "--json"]).json()
    }

    /// Panics unless a plan says that there is nothing to do.
    #[track_caller]
    pub fn nothing_to_do(&self) {
        let plan = self.with_retries(&["plan", "--detailed-exitcode"]).stdout;
        assert!(plan.contains("Nothing to do"), "{plan}");
    }

    /// One look at members that get no processor for seconds finds them silent, and says so. Another look is allowed:
    /// what only an apply would repair stays as it is.
    #[track_caller]
    #[allow(clippy::print_stderr, reason = "the log says why a test took long")]
    fn with_retries(&self, verb: &[&str]) -> Output {
        for _ in 0..3 {
            let output = self.run(verb);
            if output.code == 0 {
                return output;
            }
            let words = self.run(&["status"]).stdout;
            eprintln!("not settled, looking again: {}\n{words}", verb.join(" "));
        }
        self.run(verb).ok()
    }

    /// The one cluster's status.
    #[track_caller]
    pub fn cluster_status(&self) -> Value {
        self.status()["clusters"][0].clone()
    }

    /// Runs `etcdctl` as `raftsman env` says.
    pub fn etcdctl(&self, arguments: &[&str]) -> Output {
        self.etcdctl_of("main", arguments)
    }

    /// Runs `etcdctl` on this cluster as `raftsman env` says.
    #[track_caller]
    pub fn etcdctl_of(&self, cluster: &str, arguments: &[&str]) -> Output {
        let env = self.run(&["env", cluster]).ok().stdout;
        let script = format!("{env}\nexec \"$ETCDCTL\" \"$@\"");
        // Its own limits are two and five seconds: a busy machine can keep a process waiting for longer.
        let given = |flag: &str| arguments.iter().any(|argument| argument.starts_with(flag));
        let patient = ["--dial-timeout=15s", "--command-timeout=30s"];
        let patient = patient.into_iter().filter(|limit| !given(limit.split('=').next().unwrap_or(limit)));
        let output = Command::new("sh")
            .args(["-c", &script, "etcdctl"])
            .args(patient)
            .args(arguments)
            .env("ETCDCTL", etcdctl())
            .output()
            .expect("a shell");
        text(output)
    }

    /// Processes whose command line names this lab's directory.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let root = self.path().to_string_lossy().into_owned();
        processes().into_iter().filter(|(pid, line)| line.contains(&root) && *pid != std::process::id()).collect()
    }
}

/// The processes and files of a lab that tests kill, count and look for afterwards.
impl Lab {
    /// Running agents: the machine's name and the process.
    pub fn agents(&self) -> Vec<(String, u32)> {
        self.of_machines("raftsman-agent --root ")
    }

    /// Running etcd servers: the machine's name and the process.
    pub fn etcds(&self) -> Vec<(String, u32)> {
        self.of_machines("/etcd --config-file=")
    }

    /// Ends what runs on a machine, as a power cut does: the agent first, which would start the others again. Its disk stays.
    pub fn cut_power(&self, machine: &str) {
        for (_, pid) in self.agents().into_iter().filter(|(name, _)| name == machine) {
            kill(pid, Signal::KILL);
        }
        eventually("it ends", || {
            let left = self.processes_of(machine);
            left.iter().for_each(|pid| kill(*pid, Signal::KILL));
            left.is_empty().then_some(())
        });
    }

    /// Everything that runs on a machine: its agent and what that started, with all children.
    pub fn processes_of(&self, machine: &str) -> Vec<u32> {
        let root = self.machine(machine).to_string_lossy().into_owned();
        let named = |line: &str| [' ', '/'].iter().any(|end| format!("{line} ").contains(&format!("{root}{end}")));
        let mut found: Vec<u32> =
            self.processes().into_iter().filter(|(_, line)| named(line)).map(|(pid, _)| pid).collect();
        let all: Vec<(u32, u32)> = processes().into_iter().filter_map(|(pid, _)| Some((pid, parent(pid)?))).collect();
        let mut at = 0;
        while let Some(of) = found.get(at).copied() {
            at += 1;
            let children: Vec<u32> = all.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid).collect();
            found.extend(children.into_iter().filter(|pid| !found.contains(pid)).collect::<Vec<_>>());
        }
        found
    }

    /// Takes a machine away with its disk.
    pub fn demolish(&self, machine: &str) {
        self.cut_power(machine);
        std::fs::remove_dir_all(self.machine(machine)).expect("its directory");
    }

    fn of_machines(&self, program: &str) -> Vec<(String, u32)> {
        let machines = self.path().join(".raftsman/machines").to_string_lossy().into_owned() + "/";
        let of = |line: &str| -> Option<String> {
            let (_, argument) = line.split_once(program)?;
            let name = argument.strip_prefix(&machines)?.split(['/', ' ']).next()?;
            Some(name.to_owned())
        };
        let mut found: Vec<(String, u32)> =
            self.processes().into_iter().filter_map(|(pid, line)| Some((of(&line)?, pid))).collect();
        found.sort();
        found
    }

    /// Names of what is in a directory of the state, sorted; nothing when there is no such directory.
    pub fn listing(&self, below_state: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path().join(".raftsman").join(below_state));
        let mut names: Vec<String> =
            entries.into_iter().flatten().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Files of unfinished writes in the state and on the machines. etcd's own data is etcd's business.
    pub fn unfinished_files(&self) -> Vec<PathBuf> {
        fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
                if name.contains("tmp") || name.ends_with(".new") {
                    found.push(path.clone());
                }
                if entry.file_type().is_ok_and(|t| t.is_dir()) && !path.ends_with("etcd/data") {
                    walk(&path, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.path().join(".raftsman"), &mut found);
        found
    }

    /// The fleet's id, once there is a state.
    pub fn fleet_id(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.path().join(".raftsman/fleet.json")).ok()?;
        let fleet: Value = serde_json::from_str(&text).ok()?;
        fleet["id"].as_str().map(str::to_owned)
    }

    /// The addresses of machines that exist.
    pub fn addresses(&self) -> Vec<std::net::Ipv4Addr> {
        self.listing("machines").into_iter().filter_map(|name| self.tagged(&name)).collect()
    }

    /// The address of this machine.
    #[track_caller]
    pub fn address(&self, machine: &str) -> std::net::Ipv4Addr {
        self.tagged(machine).expect("an address")
    }

    fn tagged(&self, machine: &str) -> Option<std::net::Ipv4Addr> {
        let text = std::fs::read_to_string(self.machine(machine).join("machine.json")).ok()?;
        let tag: Value = serde_json::from_str(&text).ok()?;
        tag["address"].as_str()?.parse().ok()
    }

    /// Destroys everything, and checks that nothing is left.
    #[track_caller]
    pub fn destroy(&self) {
        let (fleet, addresses) = (self.fleet_id(), self.addresses());
        self.run(&["destroy", "--yes"]).ok();
        self.holds_nothing(fleet.as_deref(), &addresses);
    }

    /// Panics where anything is left of this fleet, whose machines had these addresses.
    #[track_caller]
    pub fn holds_nothing(&self, fleet: Option<&str>, addresses: &[std::net::Ipv4Addr]) {
        assert_eq!(self.processes(), [], "processes are left");
        assert!(!self.path().join(".raftsman").exists(), "left in the state: {:?}", self.listing(""));
        let listening: Vec<_> = listening().into_iter().filter(|(ip, _)| addresses.contains(ip)).collect();
        assert_eq!(listening, [], "a process still listens on the lab's addresses");
        let Some(fleet) = fleet else { return };
        let home = if self.user.is_some() { self.path().join(".local/state") } else { home() };
        for entry in std::fs::read_dir(home.join("raftsman/networks")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            assert!(!text.contains(fleet), "the fleet still holds the network {:?}", entry.file_name());
        }
    }
}

/// Where this user's fleets register their networks: the directory above `raftsman/networks`.
fn home() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home).expect("HOME")
}

/// Every IPv4 address and port of this computer with a listener.
pub fn listening() -> Vec<(std::net::Ipv4Addr, u16)> {
    const LISTEN: &str = "0A";
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    let row = |line: &str| {
        let mut columns = line.split_whitespace();
        let (local, state) = (columns.nth(1)?, columns.nth(1)?);
        let (address, port) = local.split_once(':')?;
        let address = u32::from_str_radix(address, 16).ok()?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == LISTEN).then(|| (std::net::Ipv4Addr::from(address.to_ne_bytes()), port))
    };
    table.lines().skip(1).filter_map(row).collect()
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.command(&["destroy", "--yes"]).output();
        // A test that broke the lab must not leave its servers behind.
        for (pid, _) in self.processes() {
            kill(pid, Signal::KILL);
        }
    }
}

/// The process that started this one.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have spaces and brackets in it: what follows it begins behind the last one.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// All running processes, with their command lines.
pub fn processes() -> Vec<(u32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned();
            (!line.is_empty()).then_some((pid, line))
        })
        .collect()
}

/// Holds the forecast of an `apply --json` against what it carried out: on every machine, and on the cluster, the same
/// steps in the same order. Which machines' steps share a wave depends on how quickly each of them answers.
#[track_caller]
pub fn forecast_equals_fact(lines: &[Value]) {
    let plan = lines.iter().find(|l| l["event"] == "plan").expect("a plan comes first");
    for cluster in plan["plan"]["clusters"].as_array().expect("clusters") {
        let forecast = by_machine(cluster["waves"].as_array().expect("waves").iter());
        let done = lines.iter().filter(|l| l["event"] == "wave" && l["cluster"] == cluster["cluster"]);
        assert_eq!(forecast, by_machine(done), "the forecast and what was done differ");
    }
}

/// What is done to each machine, one after another; what names none is done to the cluster.
fn by_machine<'a>(waves: impl Iterator<Item = &'a Value>) -> BTreeMap<String, Vec<Value>> {
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for wave in waves {
        let actions = wave["steps"].as_array().into_iter().flatten().map(|s| &s["action"]);
        // Which member leads is known only at that wave: a busy machine adds elections of its own.
        let mut actions: Vec<&Value> = actions.filter(|a| a["do"] != "move_leader").collect();
        actions.sort_by_key(|a| a.to_string());
        for action in actions {
            let machine = action["machine"].as_str().unwrap_or("the cluster").to_owned();
            found.entry(machine).or_default().push(without_ids(action.clone()));
        }
    }
    found
}

/// The model's ids are not etcd's, and a new fleet's configuration holds addresses that are chosen later.
fn without_ids(mut action: Value) -> Value {
    if let Some(action) = action.as_object_mut() {
        action.remove("digest");
        // A certificate that is still to be signed.
        action.remove("certificate");
        action.remove("cluster");
        // A new member's id depends on when it was added.
        action.remove("member");
        // What Patroni is told of etcd, and whose data it starts on.
        action.remove("hosts");
        action.remove("trust");
        if let Some(data) = action.get_mut("data").and_then(Value::as_object_mut) {
            data.values_mut().for_each(|system| *system = Value::Null);
        }
        // How soon there is data to copy is PostgreSQL's matter.
        if action.get("data").is_some_and(|data| *data == "beside") {
            action.insert("data".to_owned(), serde_json::json!({ "join": null }));
        }
    }
    action
}
