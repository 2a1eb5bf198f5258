//! A script → namespaces of our own (network, processes, mounts, control groups), in which it runs and the test is.
//!
//! Everything in a space ends with it: its first process is the parent of all others, and the kernel ends that one when
//! the test ends, in whatever way. Mounts, interfaces and names of networks go with the namespaces.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::lab::{eventually, kill, text};

/// What every space begins with. `$$` is not asked for the first process's number: it is 1, in there.
const BEGIN: &str = r#"
set -e
read -r first _ </proc/self/stat
mount -t proc proc /proc
# The network's interfaces; and control groups of the second version only, with our own as the root.
umount -l /sys
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/first
echo 0 >/sys/fs/cgroup/first/cgroup.procs
# Locks and names of networks.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns
ip link set lo up
"#;

/// The first process reaps orphaned children.
const END: &str = r#"
echo "$first"
exec >/dev/null
while :; do sleep 1000 & wait $!; done
"#;

/// Namespaces. Dropped, nothing of them is left.
pub struct Space {
    /// The program that made them.
    maker: Child,
    /// The first process in them, as seen from outside.
    first: u32,
    group: PathBuf,
    /// The network that the test was in before, and the thread that was.
    before: Option<(File, ThreadId)>,
}

impl Space {
    /// Makes a space and runs a script (bash) in it, to its end. The thread that calls this is in the space's network
    /// then, and so are the threads and programs that it starts from now on: a runtime must not exist yet.
    pub fn enter(script: &str) -> Self {
        let group = new_group();
        let procs = group.join("cgroup.procs");
        let inside = format!("{BEGIN}{script}{END}");
        // It joins its group first, so that this is the root of its groups; and it ends when the test's thread does.
        let outside = r#"echo 0 >"$1" && exec setpriv --pdeathsig KILL unshare --net --pid --fork --kill-child=KILL \
            --mount --propagation private --cgroup --uts --ipc bash -c "$2" space"#;
        let mut maker = Command::new("bash");
        maker.args(["-c", outside, "bash"]).arg(&procs).arg(&inside);
        maker.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut maker = maker.spawn().expect("bash");
        let mut line = String::new();
        let stdout = maker.stdout.take().expect("its output");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let first = line.trim().parse();
        let mut space = Self { maker, first: 0, group, before: None };
        space.first = first.expect("a space: be root, and run `just lab-machines` first");
        let own = File::open("/proc/thread-self/ns/net").expect("this thread's network");
        let network = File::open(format!("/proc/{}/ns/net", space.first)).expect("the space's network");
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("to be root");
        space.before = Some((own, std::thread::current().id()));
        space
    }

    /// A program in the space, not started yet.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.first)).args(["--all", "--", program]).stdin(Stdio::null());
        command
    }

    /// Runs a script (bash) in the space, which must succeed.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        let output = self.command("bash").args(["-euc", script]).output().expect("nsenter: install util-linux");
        text(output).ok().stdout
    }

    /// A path as it is in the space, seen from outside.
    pub fn path(&self, inside: &Path) -> PathBuf {
        let below = inside.strip_prefix("/").expect("an absolute path");
        PathBuf::from(format!("/proc/{}/root", self.first)).join(below)
    }

    /// The control group of the space, seen from outside.
    pub fn group(&self) -> &Path {
        &self.group
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if let Some((network, thread)) = &self.before
            && *thread == std::thread::current().id()
        {
            let _ = move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network));
        }
        // The group is not used again: afterwards the kernel would kill new processes in it.
        let _ = std::fs::write(self.group.join("cgroup.kill"), "1");
        kill(self.first, Signal::KILL);
        let _ = self.maker.kill();
        let _ = self.maker.wait();
        let begun = Instant::now();
        while !remove_group(&self.group) && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Where control groups of the second version are: some machines have both versions.
fn groups() -> PathBuf {
    let unified = Path::new("/sys/fs/cgroup/unified");
    if unified.join("cgroup.procs").exists() { unified.to_owned() } else { "/sys/fs/cgroup".into() }
}

/// A control group of its own. Those of killed tests are empty: they are removed now.
fn new_group() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    for entry in std::fs::read_dir(groups()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("raftsman-space-").and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove_group(&entry.path());
        }
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let group = groups().join(format!("raftsman-space-{}-{number}", std::process::id()));
    std::fs::create_dir(&group).expect("a control group: be root");
    group
}

/// Removes a group and those in it; says whether it is gone.
pub fn remove_group(group: &Path) -> bool {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_group(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
    !group.exists()
}

/// Panics unless a process is gone soon.
#[track_caller]
pub fn gone(child: &mut Child) {
    eventually("the process ends", || child.try_wait().expect("a child of ours"));
}
