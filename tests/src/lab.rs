//! A directory, the real binaries → a fleet of real etcd servers on this computer, gone when the test ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Where `just lab` puts real etcd servers, one directory a version.
pub fn etcd_dir() -> PathBuf {
    std::env::var_os("RAFTSMAN_ETCD_DIR").map(PathBuf::from).expect("RAFTSMAN_ETCD_DIR: run `just lab` first")
}

/// `etcdctl`, from where `just lab` puts it.
pub fn etcdctl() -> PathBuf {
    std::env::var_os("RAFTSMAN_ETCDCTL").map(PathBuf::from).expect("RAFTSMAN_ETCDCTL: run `just lab` first")
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

/// A fleet in a directory of its own. Destroyed when it is dropped, whatever became of it.
pub struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    /// A lab with this file.
    pub fn new(file: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("raftsman-lab-").tempdir().expect("a directory");
        std::fs::write(dir.path().join("raftsman.yaml"), file).expect("the file");
        Self { dir }
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
        let mut command = Command::new(binary("raftsman"));
        command.args(arguments).current_dir(self.path()).stdin(Stdio::null()).env_remove("NO_COLOR");
        command
    }

    /// Runs a verb to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().expect("raftsman runs");
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
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

    /// Runs `etcdctl` as `raftsman env` says.
    pub fn etcdctl(&self, arguments: &[&str]) -> Output {
        let env = self.run(&["env", "main"]).ok().stdout;
        let script = format!("{env}\nexec \"$ETCDCTL\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &script, "etcdctl"])
            .args(arguments)
            .env("ETCDCTL", etcdctl())
            .output()
            .expect("a shell");
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Processes whose command line names this lab's directory.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let root = self.path().to_string_lossy().into_owned();
        processes().into_iter().filter(|(pid, line)| line.contains(&root) && *pid != std::process::id()).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.command(&["destroy", "--yes"]).output();
        // A test that broke the lab must not leave its servers behind.
        for (pid, _) in self.processes() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// All processes that live, with their command lines.
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

/// Holds the forecast of an `apply --json` against the waves that it carried out.
#[track_caller]
pub fn forecast_equals_fact(lines: &[Value]) {
    let plan = lines.iter().find(|l| l["event"] == "plan").expect("a plan comes first");
    for cluster in plan["plan"]["clusters"].as_array().expect("clusters") {
        let actions = |steps: &Value| -> Vec<Value> {
            let mut actions: Vec<Value> =
                steps.as_array().into_iter().flatten().map(|s| without_ids(s["action"].clone())).collect();
            actions.sort_by_key(|a| a.to_string());
            actions
        };
        let forecast: Vec<Vec<Value>> =
            cluster["waves"].as_array().expect("waves").iter().map(|w| actions(&w["steps"])).collect();
        let done = lines.iter().filter(|l| l["event"] == "wave" && l["cluster"] == cluster["cluster"]);
        let done: Vec<Vec<Value>> = done.map(|l| actions(&l["steps"])).collect();
        assert_eq!(forecast, done, "the forecast and what was done differ");
    }
}

/// The model's ids are not etcd's, and a new fleet's configuration holds addresses that are chosen later.
fn without_ids(mut action: Value) -> Value {
    if let Some(action) = action.as_object_mut() {
        action.remove("digest");
        action.remove("cluster");
    }
    action
}
