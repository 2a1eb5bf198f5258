//! What a benchmark measured several times → the figure that stands for it.

/// The one in the middle; 0 where nothing was measured.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}
