//! A tokenizer for Rust, as exact as the checks need: words, marks, comments, literals.
//!
//! It knows where comments and literals end, so that a word inside them is not taken for code.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// An identifier, a keyword or a number.
    Word(&'a str),
    /// One character of punctuation.
    Mark(char),
    /// A string, byte string or character literal, or a lifetime.
    Literal,
    /// A comment with its slashes, documentation included.
    Comment(&'a str),
}

/// A token and the line that it begins on, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind<'a>,
    pub(crate) line: usize,
}

impl Token<'_> {
    /// Is this the word `word`?
    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word(word)
    }

    /// Is this the mark `mark`?
    pub(crate) fn is_mark(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }
}

/// Splits a source text into tokens. An unclosed literal or comment runs to the end.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = next(rest, first);
        let (taken, after) = rest.split_at(length);
        if let Some(kind) = kind {
            tokens.push(Token { kind, line });
        }
        line += taken.matches('\n').count();
        rest = after;
    }
    tokens
}

/// The tokens that are no comments.
pub(crate) fn code<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    tokens
        .iter()
        .filter(|token| !matches!(token.kind, Kind::Comment(_)))
        .copied()
        .collect()
}

/// The token that `rest` begins with (`None` for white space) and its length in bytes.
fn next(rest: &str, first: char) -> (Option<Kind<'_>>, usize) {
    if first.is_whitespace() {
        return (None, first.len_utf8());
    }
    if rest.starts_with("//") {
        let length = rest.find('\n').unwrap_or(rest.len());
        return (Some(Kind::Comment(&rest[..length])), length);
    }
    if rest.starts_with("/*") {
        let length = block_comment(rest);
        return (Some(Kind::Comment(&rest[..length])), length);
    }
    if first == '"' {
        return (Some(Kind::Literal), quoted(rest, '"'));
    }
    if first == '\'' {
        return (Some(Kind::Literal), character_or_lifetime(rest));
    }
    if is_word(first) {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        if let ("r" | "br" | "cr", Some(raw)) = (word, raw_string(after)) {
            return (Some(Kind::Literal), length + raw);
        }
        return (Some(Kind::Word(word)), length);
    }
    (Some(Kind::Mark(first)), first.len_utf8())
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// The length of a block comment; they nest.
fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut depth = 0;
    let mut at = 0;
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of a literal that begins and ends with `quote`.
fn quoted(rest: &str, quote: char) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + 1;
        }
    }
    rest.len()
}

/// The length of `'a'` or `'\n'`, or of the lifetime `'a`.
fn character_or_lifetime(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => quoted(rest, '\''),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => rest[1..]
            .find(|c| !is_word(c))
            .map_or(rest.len(), |length| length + 1),
    }
}

/// The length of a raw string from its first hash or quote on.
fn raw_string(after: &str) -> Option<usize> {
    let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
    if after.as_bytes().get(hashes) != Some(&b'"') {
        return None; // A raw identifier.
    }
    let begin = hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = after[begin..]
        .find(&end)
        .map_or(after.len(), |at| begin + at + end.len());
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        for token in tokens(text) {
            if let Kind::Word(word) = token.kind {
                words.push(word);
            }
        }
        words
    }

    #[test]
    fn comments_are_one_token_each() {
        let text = "a // unsafe\n/* x /* nested */ unsafe */ b /// doc\nc";
        assert_eq!(words(text), ["a", "b", "c"]);
        let comments = tokens(text)
            .into_iter()
            .filter(|t| matches!(t.kind, Kind::Comment(_)));
        assert_eq!(comments.count(), 3);
    }

    #[test]
    fn strings_hide_their_words() {
        assert_eq!(
            words(r#"a("unsafe \" unsafe", b"unsafe") c"#),
            ["a", "b", "c"]
        );
        assert_eq!(
            words("a(r\"un\\\", br##\"safe\"# unsafe\"##) b"),
            ["a", "b"]
        );
        assert_eq!(words("let r#type = 1;"), ["let", "r", "type", "1"]);
        assert_eq!(words("\"// no comment\" a"), ["a"]);
    }

    #[test]
    fn characters_are_told_from_lifetimes() {
        assert_eq!(words(r"f('a', '\'', '\u{41}', b'x') g"), ["f", "b", "g"]);
        assert_eq!(
            words("impl<'a> X<'a> for &'static str {}"),
            ["impl", "X", "for", "str"]
        );
        assert_eq!(words("'\"' a '\"'"), ["a"]);
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let text = "a\n/* \n */ b\n\"\n\" c";
        let lines: Vec<_> = code(&tokens(text)).iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 3, 4, 5]);
    }

    #[test]
    fn broken_ends_do_not_loop_or_panic() {
        for text in [
            "\"open",
            "/* open",
            "r#\"open",
            "'",
            "'\\",
            "// \u{e9}",
            "\u{e9}'\u{e9}'",
        ] {
            assert!(!tokens(text).is_empty(), "{text}");
        }
    }
}
