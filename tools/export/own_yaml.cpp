#include "tools/export/own_yaml.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace shardplan {
namespace {

// A key with its value: lines [begin, end), of which the first has the key.
struct Node {
  YamlPath path = {};
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t indent = 0;      // of the key
  std::size_t value = 0;       // in the key's line: where its value begins
  std::size_t value_size = 0;  // without the blanks and the comment behind it; 0: none on this line
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::size_t indent_of(const std::string& line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

bool is_empty(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(" \t\r");
  return begin == std::string::npos || line[begin] == '#';
}

bool is_item(const std::string& line) {
  const std::size_t begin = indent_of(line);
  return line.compare(begin, 2, "- ") == 0 || line.substr(begin) == "-";
}

// Behind a word in quotes that begins here, else where it began.
std::size_t behind_quotes(std::string_view line, std::size_t begin) {
  const char quote = begin < line.size() ? line[begin] : ' ';
  if (quote != '"' && quote != '\'') {
    return begin;
  }
  const std::size_t close = line.find(quote, begin + 1);
  return close == std::string_view::npos ? begin : close + 1;
}

// Where the colon of "key: value" stands; npos in a line that has none.
std::size_t colon_of(const std::string& line) {
  const std::size_t begin = indent_of(line);
  for (std::size_t at = behind_quotes(line, begin); at < line.size(); ++at) {
    const bool ends_key = at + 1 == line.size() || line[at + 1] == ' ' || line[at + 1] == '\r';
    if (line[at] == ':' && ends_key) {
      return at > begin ? at : std::string::npos;
    }
    if (line[at] == '#' || line[at] == '{' || line[at] == '[') {
      return std::string::npos;
    }
  }
  return std::string::npos;
}

std::string without_quotes(const std::string& word) {
  const bool is_quoted =
      word.size() > 1 && word.front() == word.back() && (word[0] == '"' || word[0] == '\'');
  return is_quoted ? word.substr(1, word.size() - 2) : word;
}

// Fills in where the value stands behind the colon.
void find_value(const std::string& line, std::size_t colon, Node& node) {
  const std::size_t begin = std::min(line.find_first_not_of(' ', colon + 1), line.size());
  std::size_t end = begin;
  for (std::size_t at = begin; at < line.size(); ++at) {
    at = std::max(at, behind_quotes(line, at));
    const bool is_comment =
        at < line.size() && line[at] == '#' && (at == begin || line[at - 1] == ' ');
    if (at >= line.size() || is_comment) {
      end = std::min(at, line.size());
      break;
    }
    end = at + 1;
  }
  while (end > begin && std::string_view(" \t\r").find(line[end - 1]) != std::string_view::npos) {
    --end;
  }
  node.value = std::max(begin, colon + 1);
  node.value_size = end > begin ? end - begin : 0;
}

// Lines of a list or mapping in braces that goes on below, of a text behind | or >, and deeper ones
// belong to the key; so do items of a list that stand as deep as the key.
std::size_t end_of_node(const std::vector<std::string>& lines, const Node& node) {
  std::size_t end = node.begin + 1;
  for (std::size_t at = end; at < lines.size(); ++at) {
    if (is_empty(lines[at])) {
      continue;
    }
    const std::size_t indent = indent_of(lines[at]);
    const bool belongs = indent > node.indent ||
                         (indent == node.indent && node.value_size == 0 && is_item(lines[at]));
    if (!belongs) {
      break;
    }
    end = at + 1;
  }
  return end;
}

bool holds_mapping(const std::vector<std::string>& lines, const Node& node) {
  std::size_t first = node.begin + 1;
  while (first < node.end && is_empty(lines[first])) { ++first; }
  return first < node.end && !is_item(lines[first]) && colon_of(lines[first]) != std::string::npos;
}

// Keys of block mappings, each under its path. What lies in lists and in texts of several lines is
// no key of any.
std::vector<Node> nodes_of(const std::vector<std::string>& lines) {
  std::vector<Node> nodes;
  std::vector<std::size_t> open;  // of `nodes`, the mappings that the line lies in
  for (std::size_t at = 0; at < lines.size(); ++at) {
    const std::string& line = lines[at];
    if (is_empty(line) || is_item(line) || line.starts_with("---")) {
      continue;
    }
    const std::size_t indent = indent_of(line);
    while (!open.empty() && nodes[open.back()].indent >= indent) { open.pop_back(); }
    const std::size_t colon = colon_of(line);
    if (colon == std::string::npos) {
      continue;
    }
    Node node{.begin = at, .indent = indent};
    if (!open.empty()) {
      node.path = nodes[open.back()].path;
    }
    node.path.push_back(without_quotes(line.substr(indent, colon - indent)));
    find_value(line, colon, node);
    node.end = end_of_node(lines, node);
    if (node.value_size == 0 && holds_mapping(lines, node)) {
      open.push_back(nodes.size());
    } else {
      at = node.end - 1;
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

// The last of that path: who reads a mapping takes it.
std::optional<Node> find_node(const std::vector<Node>& nodes, const YamlPath& path) {
  const auto found = std::find_if(nodes.rbegin(), nodes.rend(),
                                  [&](const Node& node) { return node.path == path; });
  return found == nodes.rend() ? std::nullopt : std::optional(*found);
}

void erase_lines(std::vector<std::string>& lines, std::size_t begin, std::size_t end) {
  lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(begin),
              lines.begin() + static_cast<std::ptrdiff_t>(end));
}

void set_value(std::vector<std::string>& lines, const Node& node, const std::string& value) {
  std::string& line = lines[node.begin];
  const std::string text = line[node.value - 1] == ' ' ? value : " " + value;
  line.replace(node.value, node.value_size, text);
  erase_lines(lines, node.begin + 1, node.end);
}

void insert_line(std::vector<std::string>& lines, std::size_t at, std::size_t indent,
                 const std::string& text) {
  lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), std::string(indent, ' ') + text);
}

// Behind the key that it belongs to, else at the end of its mapping, which is made where it is not
// there.
void add_key(std::vector<std::string>& lines, const YamlChange& change) {
  constexpr std::size_t kStep = 2;
  const std::vector<Node> nodes = nodes_of(lines);
  const YamlPath parent(change.path.begin(), change.path.end() - 1);
  YamlPath sibling = parent;
  sibling.push_back(change.behind);
  const std::string text = change.path.back() + ": " + change.value;
  if (const std::optional<Node> before = find_node(nodes, sibling)) {
    insert_line(lines, before->end, before->indent, text);
    return;
  }
  if (parent.empty()) {
    insert_line(lines, lines.size(), nodes.empty() ? 0 : nodes.front().indent, text);
    return;
  }
  if (const std::optional<Node> mapping = find_node(nodes, parent)) {
    const auto child = std::ranges::find_if(nodes, [&](const Node& node) {
      return node.path.size() == parent.size() + 1 &&
             std::equal(parent.begin(), parent.end(), node.path.begin());
    });
    const bool is_block = mapping->value_size == 0 && child != nodes.end();
    if (is_block || (mapping->value_size == 0 && mapping->end == mapping->begin + 1)) {
      insert_line(lines, mapping->end, is_block ? child->indent : mapping->indent + kStep, text);
    }
    return;
  }
  std::size_t indent = nodes.empty() ? 0 : nodes.front().indent;
  for (const std::string& key : parent) {
    insert_line(lines, lines.size(), indent, key + ":");
    indent += kStep;
  }
  insert_line(lines, lines.size(), indent, text);
}

void make_change(std::vector<std::string>& lines, const YamlChange& change) {
  const std::optional<Node> node = find_node(nodes_of(lines), change.path);
  if (change.is_removed) {
    if (node) {
      erase_lines(lines, node->begin, node->end);
    }
  } else if (node) {
    set_value(lines, *node, change.value);
  } else {
    add_key(lines, change);
  }
}

std::string value_in(const std::vector<std::string>& lines, const Node& node) {
  return without_quotes(lines[node.begin].substr(node.value, node.value_size));
}

}  // namespace

bool has_yaml_key(const std::string& text, const YamlPath& path) {
  return find_node(nodes_of(lines_of(text)), path).has_value();
}

std::string yaml_value(const std::string& text, const YamlPath& path) {
  const std::vector<std::string> lines = lines_of(text);
  const std::optional<Node> node = find_node(nodes_of(lines), path);
  return node ? value_in(lines, *node) : "";
}

std::string edited_yaml(const std::string& text, const std::vector<YamlChange>& changes) {
  std::vector<std::string> lines = lines_of(text);
  for (const YamlChange& change : changes) { make_change(lines, change); }
  std::string edited;
  for (const std::string& line : lines) { edited += line + "\n"; }
  if (!text.ends_with('\n') && !edited.empty() && changes.empty()) {
    edited.pop_back();
  }
  return edited;
}

}  // namespace shardplan
