//! Tests of the simulator: traces, and miss ratios against recorded ones.

mod expected;
mod traces;
