//! A cluster, a load, operations → what clients saw of the operations, and whether all of it may be true.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for people")]

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use raftsman_tests::lab::{Lab, binary, etcdctl};
use raftsman_tests::load::{Load, LoadSettings, Verdict};

const USAGE: &str = "\
under-load [--members N] [--version V] [--rate R] [--quiet S] [--further 'line']... [--history F]
           -- <operation> [-- <operation>]...

Brings up a cluster `main`, puts clients to work on it, does the operations one after the other, and judges what the
clients saw. An operation is a verb of raftsman with its arguments, or, if it is one argument with a space in it, a
script for `sh`, in the directory of raftsman.yaml, with raftsman, etcdctl and the variables of `raftsman env`.

  --members N       members (3)
  --version V       of etcd (3.6.15)
  --rate R          writes a second (300)
  --quiet S         seconds of load before, between and after the operations (2)
  --further 'line'  a further line of the cluster's section in the file
  --history F       keep the history in this file, also when nothing is wrong

under-load -- apply --yes
under-load -- 'sed -i \"s/version: .*/version: 3.6.15/\" raftsman.yaml && raftsman apply --yes'";

struct Arguments {
    members: usize,
    version: String,
    quiet: Duration,
    further: Vec<String>,
    history: Option<PathBuf>,
    settings: LoadSettings,
    operations: Vec<Vec<String>>,
}

fn read(arguments: &[String]) -> Result<Arguments, String> {
    let mut all = arguments.iter().cloned();
    let mut read = Arguments {
        members: 3,
        version: "3.6.15".to_owned(),
        quiet: Duration::from_secs(2),
        further: Vec::new(),
        history: None,
        settings: LoadSettings::default(),
        operations: Vec::new(),
    };
    while let Some(option) = all.next() {
        // `just` may have taken the first `--` for itself.
        if option == "--" || !option.starts_with("--") {
            let words: Vec<String> = Some(option).filter(|word| word != "--").into_iter().chain(all).collect();
            read.operations = words.split(|word| word == "--").map(<[String]>::to_vec).collect();
            break;
        }
        let value = all.next().ok_or_else(|| format!("`{option}` needs a value"))?;
        let number = || value.parse::<u32>().map_err(|e| format!("`{option} {value}`: {e}"));
        match option.as_str() {
            "--members" => read.members = number()? as usize,
            "--version" => read.version = value,
            "--rate" => read.settings.rate = number()?,
            "--quiet" => read.quiet = Duration::from_secs(u64::from(number()?)),
            "--history" => read.history = Some(PathBuf::from(value)),
            "--further" => read.further.push(value),
            _ => return Err(format!("there is no option `{option}`")),
        }
    }
    read.operations.retain(|operation| !operation.is_empty());
    if read.operations.is_empty() { Err("an operation is missing, after `--`".to_owned()) } else { Ok(read) }
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let arguments = match read(arguments) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("under-load: {problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let further: Vec<&str> = arguments.further.iter().map(String::as_str).collect();
    let lab = Lab::cluster(arguments.members, &arguments.version, &further);
    lab.run(&["apply", "--yes"]).ok();
    println!(
        "{} members of etcd {}, {} writes a second, in {}",
        arguments.members,
        arguments.version,
        arguments.settings.rate,
        lab.path().display()
    );
    let load = Load::start(&lab, arguments.settings);
    std::thread::sleep(arguments.quiet);
    let mut failed = false;
    for operation in &arguments.operations {
        let words = operation.join(" ");
        println!("> {words}");
        load.mark(&words);
        let begun = Instant::now();
        let status = command(&lab, operation).status();
        let status =
            status.map_err(|e| e.to_string()).and_then(|s| if s.success() { Ok(()) } else { Err(s.to_string()) });
        println!(
            "< {:.1} s{}",
            begun.elapsed().as_secs_f64(),
            status.as_ref().err().map(|e| format!(", {e}")).unwrap_or_default()
        );
        load.mark(&format!("end of {words}"));
        failed |= status.is_err();
        std::thread::sleep(arguments.quiet);
    }
    let (history, file) = load.end();
    if let Some(path) = &arguments.history
        && let Err(problem) = std::fs::copy(&file, path)
    {
        eprintln!("under-load: the history cannot be kept in {}: {problem}", path.display());
        failed = true;
    }
    let verdict = Verdict::of(&history, Some(file));
    print!("{verdict}");
    if verdict.clean() && !failed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A verb of raftsman, or a script.
fn command(lab: &Lab, operation: &[String]) -> Command {
    match operation {
        [script] if script.contains(char::is_whitespace) => {
            let script = format!("set -e\neval \"$(raftsman env main)\"\n{script}");
            let beside = [binary("raftsman"), etcdctl()];
            let beside = beside.iter().filter_map(|program| program.parent()).map(PathBuf::from);
            let path = std::env::var_os("PATH").unwrap_or_default();
            let path = std::env::join_paths(beside.chain(std::env::split_paths(&path))).expect("no colon in a path");
            let mut command = Command::new("sh");
            command.args(["-c", &script]).env("PATH", path).current_dir(lab.path()).stdin(Stdio::null());
            command
        }
        words => {
            let words = words.strip_prefix(&["raftsman".to_owned()]).unwrap_or(words);
            lab.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
        }
    }
}
