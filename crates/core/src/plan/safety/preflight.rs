//! A measurement → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, otherwise};
use crate::action::PreflightAction;
use crate::plan::preflight;

pub(super) fn judge(case: &Case<'_>, action: &PreflightAction) -> Result<Cost, Refusal> {
    match action {
        PreflightAction::Measure => {
            let (ready, needed) = preflight::answering(case.desired, case.observed);
            if ready.len() < needed { Err(otherwise("too few agents answer")) } else { Ok(case.unharmed) }
        }
    }
}
