//! The paths that a Rust file names: in `use` items, in code and inside macros.

use super::tokens::{flatten, text};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// A path, and where the file names it.
pub(super) struct Named {
    /// Its segments as written; `*` at the end for a glob.
    pub(super) path: Vec<String>,
    /// From 1.
    pub(super) line: usize,
    /// The inline modules around it, from the outside in.
    pub(super) inside: Vec<String>,
    pub(super) place: Place,
    /// Whether it is in an item for tests (`#[cfg(test)]`).
    pub(super) for_tests: bool,
}

/// The kind of place that names a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Code, or a private import.
    Use,
    /// An import that other modules may use.
    ReExport,
}

/// The paths of a file, in the order of its items.
pub(super) fn named(syntax: &syn::File) -> Vec<Named> {
    let mut paths = Paths { inside: Vec::new(), for_tests: false, found: Vec::new() };
    paths.visit_file(syntax);
    paths.found
}

/// A name that a `use` brings, the path that it names, and where.
pub(super) type Leaf = (String, Vec<String>, Span);

/// The names that a `use` brings.
pub(super) fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    add_leaves(tree, &mut Vec::new(), &mut leaves);
    leaves
}

fn add_leaves(tree: &UseTree, prefix: &mut Vec<String>, leaves: &mut Vec<Leaf>) {
    let mut leaf = |name: String, last: &str, span: Span| {
        let last = (last != "self").then(|| last.to_owned());
        let path: Vec<String> = prefix.iter().cloned().chain(last).collect();
        leaves.push((name, path, span));
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            add_leaves(&path.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| add_leaves(tree, prefix, leaves));
        }
        UseTree::Name(name) if name.ident == "self" => {
            let own = prefix.last().cloned().unwrap_or_default();
            leaf(own, "self", name.span());
        }
        UseTree::Name(name) => leaf(name.ident.to_string(), &name.ident.to_string(), name.span()),
        UseTree::Rename(name) => {
            leaf(name.rename.to_string(), &name.ident.to_string(), name.span());
        }
        UseTree::Glob(glob) => leaf("*".to_owned(), "*", glob.span()),
    }
}

struct Paths {
    inside: Vec<String>,
    for_tests: bool,
    found: Vec<Named>,
}

impl Paths {
    fn add(&mut self, path: Vec<String>, line: usize, place: Place) {
        let (inside, for_tests) = (self.inside.clone(), self.for_tests);
        self.found.push(Named { path, line, inside, place, for_tests });
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test = |attribute: &Attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attributes.iter().any(is_test)
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => &[],
        };
        let around = self.for_tests;
        self.for_tests |= is_for_tests(attributes);
        visit::visit_item(self, item);
        self.for_tests = around;
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.inside.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.inside.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let place = match item.vis {
            Visibility::Inherited => Place::Use,
            _ => Place::ReExport,
        };
        for (_, path, span) in leaves(&item.tree) {
            self.add(path, span.start().line, place);
        }
    }

    /// `pub(crate)` is a path, but no use of the crate root.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.add(names, path.span().start().line, Place::Use);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let tokens = flatten(mac.tokens.clone());
        let mut index = 0;
        while index < tokens.len() {
            let mut path = vec![tokens[index].text.clone()];
            let line = tokens[index].line;
            while text(&tokens, index + 1) == ":" && text(&tokens, index + 2) == ":" {
                path.push(text(&tokens, index + 3).to_owned());
                index += 3;
            }
            index += 1;
            self.add(path, line, Place::Use);
        }
        visit::visit_macro(self, mac);
    }
}
