//! The examples of the book and of its first page, compiled and run with the documentation's.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../book/replacing-mmap.md")]
struct ReplacingMmap;

#[doc = include_str!("../../../book/replacing-an-object-cache.md")]
struct ReplacingAnObjectCache;

#[doc = include_str!("../../../book/engines.md")]
struct Engines;

#[doc = include_str!("../../../book/serving.md")]
struct Serving;

#[doc = include_str!("../../../book/sizing.md")]
struct Sizing;

#[doc = include_str!("../../../book/containers.md")]
struct Containers;

#[doc = include_str!("../../../book/looking.md")]
struct Looking;
