//! A seed → the same dice at every run (SplitMix64).

/// Seeded dice.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall the same for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice for the part of a long matrix that this run takes: CI has others for every commit, a soak takes everything.
    #[allow(clippy::print_stdout, reason = "a failed run is repeated with the same part")]
    pub fn of_this_run(matrix: &str) -> Self {
        let draw: u64 = std::env::var("RAFTSMAN_DRAW").ok().and_then(|draw| draw.parse().ok()).unwrap_or(0);
        println!("{matrix}: again with RAFTSMAN_DRAW={draw}");
        Self(matrix.bytes().fold(draw, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte))))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.bits() % n.max(1) as u64).unwrap_or(0)
    }

    /// True once in `n` throws.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { items.get(self.below(items.len())) }
    }

    /// So many of them, each at most once, in their order.
    pub fn some<T: Clone>(&mut self, items: &[T], count: usize) -> Vec<T> {
        let mut places: Vec<usize> = (0..items.len()).collect();
        self.shuffle(&mut places);
        places.truncate(count);
        places.sort_unstable();
        places.into_iter().map(|place| items[place].clone()).collect()
    }

    /// Another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
