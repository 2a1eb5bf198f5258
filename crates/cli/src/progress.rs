//! Events of an apply → a live view on a terminal, plain lines in a pipe, JSON lines for programs.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use raftsman_core::plan::Waiting;
use raftsman_core::spec::Name;
use raftsman_engine::apply::{Event, Interrupted};
use serde_json::json;

use crate::view::{Paint, print, print_json_line};

/// A pipe gets another line about what is waited for after this time, to show that the command does not hang.
const REMIND: Duration = Duration::from_secs(10);

/// Shows what happens.
pub(crate) enum Progress {
    /// On a terminal.
    Live(Live),
    /// In a pipe.
    Plain(Mutex<BTreeMap<Name, Reminder>>),
    /// For programs.
    Json,
}

pub(crate) struct Live {
    all: MultiProgress,
    clusters: Mutex<BTreeMap<Name, ProgressBar>>,
    paint: Paint,
}

#[derive(Default)]
pub(crate) struct Reminder {
    last: Option<Instant>,
}

impl Progress {
    /// The right one for where the output goes.
    pub(crate) fn new(json: bool) -> Self {
        if json {
            Self::Json
        } else if std::io::stdout().is_terminal() && std::io::stderr().is_terminal() {
            let clusters = Mutex::new(BTreeMap::new());
            Self::Live(Live { all: MultiProgress::new(), clusters, paint: Paint::of_stdout() })
        } else {
            Self::Plain(Mutex::new(BTreeMap::new()))
        }
    }

    /// Shows one event.
    pub(crate) fn on_event(&self, cluster: &Name, event: &Event) {
        match self {
            Self::Live(live) => live.on_event(cluster, event),
            Self::Plain(reminders) => plain(reminders, cluster, event),
            Self::Json => json_line(cluster, event),
        }
    }
}

impl Live {
    fn on_event(&self, cluster: &Name, event: &Event) {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = clusters.entry(cluster.clone()).or_insert_with(|| {
            let bar = self.all.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {wide_msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_prefix(cluster.to_string());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let paint = self.paint;
        match event {
            Event::Wave { steps } => {
                let doing: Vec<String> = steps.iter().map(|s| s.action.describe()).collect();
                bar.set_message(doing.join(", "));
                bar.reset_elapsed();
            }
            Event::Done { action, took } => {
                let line = format!("  {} {cluster}  {}  {} ms", paint.green("✓"), action.describe(), took.as_millis());
                let _ = self.all.println(line);
            }
            Event::Failed { action, error } => {
                let _ = self.all.println(format!("  {} {cluster}  {}: {error}", paint.red("✗"), action.describe()));
            }
            Event::Waiting { waiting } => bar.set_message(format!("waits for {}", brief(waiting))),
            Event::Converged { .. } | Event::Interrupted(_) | Event::Stuck { .. } => {
                bar.finish_and_clear();
                // The last message ends with a line break, so that the shell's prompt has a line of its own.
                self.all.suspend(|| print(&format!("{}\n", ending(cluster, event, paint))));
            }
        }
    }
}

fn plain(reminders: &Mutex<BTreeMap<Name, Reminder>>, cluster: &Name, event: &Event) {
    let line = match event {
        Event::Wave { .. } => return,
        Event::Done { action, took } => format!("{cluster}: {} ({} ms)", action.describe(), took.as_millis()),
        Event::Failed { action, error } => format!("{cluster}: {} failed: {error}", action.describe()),
        Event::Waiting { waiting } => {
            let mut reminders = reminders.lock().unwrap_or_else(PoisonError::into_inner);
            let reminder = reminders.entry(cluster.clone()).or_default();
            if reminder.last.is_some_and(|last| last.elapsed() < REMIND) {
                return;
            }
            reminder.last = Some(Instant::now());
            format!("{cluster}: waits for {}", brief(waiting))
        }
        Event::Converged { .. } | Event::Interrupted(_) | Event::Stuck { .. } => {
            ending(cluster, event, Paint::of_stdout())
        }
    };
    print(&format!("{line}\n"));
}

fn ending(cluster: &Name, event: &Event, paint: Paint) -> String {
    match event {
        Event::Converged { steps, took } => {
            let seconds = took.as_secs_f32();
            let plural = if *steps == 1 { "" } else { "s" };
            format!("{} {cluster} is as it should be: {steps} step{plural}, {seconds:.1} s", paint.green("done:"))
        }
        Event::Interrupted(how) => format!("{} {cluster}: {how}", paint.yellow("stopped:")),
        Event::Stuck { error } => format!("{} {cluster}: {error}", paint.red("stopped:")),
        _ => String::new(),
    }
}

fn json_line(cluster: &Name, event: &Event) {
    let value = match event {
        Event::Wave { steps } => json!({ "event": "wave", "steps": steps }),
        Event::Done { action, took } => json!({ "event": "done", "action": action, "ms": took.as_millis() as u64 }),
        Event::Failed { action, error } => json!({ "event": "failed", "action": action, "error": error }),
        Event::Waiting { waiting } => json!({ "event": "waiting", "waiting": waiting }),
        Event::Converged { steps, took } => {
            json!({ "event": "converged", "steps": steps, "ms": took.as_millis() as u64 })
        }
        Event::Interrupted(Interrupted { finished, down }) => {
            json!({ "event": "interrupted", "finished": finished, "down": down })
        }
        Event::Stuck { error } => json!({ "event": "stuck", "error": error }),
    };
    let mut line = json!({ "cluster": cluster });
    if let (Some(line), Some(value)) = (line.as_object_mut(), value.as_object()) {
        line.extend(value.clone());
    }
    print_json_line(&line);
}

fn brief(waiting: &[Waiting]) -> String {
    match waiting {
        [] => "nothing".to_owned(),
        [one] => one.to_string(),
        [one, rest @ ..] => format!("{one}, and {} more", rest.len()),
    }
}
