#include "tools/screen/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "tools/report/text.h"

namespace shardplan {
namespace {

constexpr std::int64_t kNarrowest = 60;
constexpr std::int64_t kWidest = 200;
constexpr std::int64_t kLabelWidth = 10;  // at least

// The first of the variables by which C's locale is chosen that says anything.
std::string locale_name() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') {
      return value;
    }
  }
  return "";
}

bool is_utf8(std::string locale) {
  for (char& letter : locale) {
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  }
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

std::int64_t terminal_width() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  const char* columns = std::getenv("COLUMNS");
  const std::int64_t width = columns == nullptr ? 0 : std::strtoll(columns, nullptr, 10);
  return width > 0 ? width : kPipedWidth;
}

// Bytes of the first `most` characters.
std::size_t bytes_of(std::string_view text, std::int64_t most) {
  std::size_t at = 0;
  for (std::int64_t width = 0; at < text.size(); ++at) {
    const bool continues = (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
    width += continues ? 0 : 1;
    if (width > most) {
      break;
    }
  }
  return at;
}

// Rows of at most `width` characters: words as whole as the width lets them be.
std::vector<std::string> wrapped(std::string_view text, std::int64_t width) {
  std::vector<std::string> rows = {""};
  while (!text.empty()) {
    const std::size_t start = text.find_first_not_of(' ');
    if (start == std::string_view::npos) {
      break;
    }
    const std::size_t end = std::min(text.find(' ', start), text.size());
    std::string_view word = text.substr(start, end - start);
    const std::string gap(rows.back().empty() ? 0 : start, ' ');
    text.remove_prefix(end);
    const std::int64_t used = display_width(rows.back()) + std::ssize(gap);
    if (used + display_width(word) <= width) {
      rows.back().append(gap).append(word);
      continue;
    }
    if (!rows.back().empty()) {
      rows.emplace_back();
    }
    while (display_width(word) > width) {
      const std::size_t cut = bytes_of(word, width);
      rows.back() = word.substr(0, cut);
      rows.emplace_back();
      word.remove_prefix(cut);
    }
    rows.back() = word;
  }
  return rows;
}

std::string cut_to(const std::string& row, std::int64_t width) {
  return display_width(row) <= width ? row : row.substr(0, bytes_of(row, width - 3)) + "...";
}

// Words of a shell command, quotes left as they are.
std::vector<std::string> shell_words(const std::string& command) {
  std::vector<std::string> words = {""};
  bool is_quoted = false;
  for (const char letter : command) {
    is_quoted = letter == '\'' ? !is_quoted : is_quoted;
    if (letter == ' ' && !is_quoted) {
      words.emplace_back();
    } else {
      words.back() += letter;
    }
  }
  std::erase(words, "");
  return words;
}

// Options with their values, which stay on one row where they can.
std::vector<std::string> command_pieces(const std::string& command) {
  std::vector<std::string> pieces;
  for (const std::string& word : shell_words(command)) {
    const bool is_value = !pieces.empty() && pieces.back().starts_with("--") &&
                          pieces.back().find(' ') == std::string::npos && !word.starts_with("--");
    if (is_value) {
      pieces.back().append(" ").append(word);
    } else {
      pieces.push_back(word);
    }
  }
  return pieces;
}

}  // namespace

Screen screen_for(const Options& options, const Output& output) {
  Screen screen = {.is_unicode = is_utf8(locale_name()), .paint = paint_for(options, output)};
  if (output.is_terminal()) {
    screen.width = std::clamp(terminal_width(), kNarrowest, kWidest);
  }
  return screen;
}

bool asks_details(const Options& options) {
  constexpr auto kLong = std::to_array<std::string_view>(
      {"details", "explain", "limit", "program", "headroom", "families", "pareto", "scaling"});
  return std::ranges::any_of(kLong, [&](std::string_view name) { return given(options, name); });
}

std::int64_t num_rows(const std::string& text) {
  return std::ranges::count(text, '\n');
}

std::string composed(std::vector<Block> blocks) {
  const auto rows = [&] {
    std::int64_t sum = 0;
    for (const Block& block : blocks) { sum += num_rows(block.text); }
    return sum;
  };
  while (rows() > kMostRows) {
    const auto lightest = std::ranges::min_element(blocks, {}, &Block::weight);
    if (lightest == blocks.end() || lightest->weight == kMustStand) {
      break;
    }
    blocks.erase(lightest);
  }
  std::string text;
  for (const Block& block : blocks) { text += block.text; }
  return text;
}

std::string screen_line(const Screen& screen, std::string_view label, const std::string& text,
                        std::int64_t most_rows) {
  const std::int64_t indent = label.empty() ? 0 : std::max(kLabelWidth, display_width(label) + 1);
  const std::int64_t width = screen.width - indent;
  std::vector<std::string> rows = wrapped(text, width);
  if (std::ssize(rows) > most_rows) {
    rows.resize(static_cast<std::size_t>(most_rows));
    rows.back() = cut_to(rows.back() + "...", width);
  }
  std::string lines;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    lines += padded_right(row == 0 ? label : "", indent) + rows[row] + "\n";
  }
  return lines;
}

std::string rewrapped(const Screen& screen, const std::string& text, std::int64_t most_rows) {
  std::string rows;
  for (std::size_t start = 0; start < text.size(); start = text.find('\n', start) + 1) {
    rows += screen_line(screen, "", text.substr(start, text.find('\n', start) - start), most_rows);
  }
  return rows;
}

std::string verdict_line(const Screen& screen, Colour colour, const std::string& verdict,
                         const std::string& text) {
  const std::string whole = screen_line(screen, "", verdict + "  " + text);
  return screen.paint(colour, verdict) + whole.substr(verdict.size());
}

std::string command_rows(const Screen& screen, const std::string& command) {
  constexpr std::string_view kIndent = "    ";
  const std::int64_t width = screen.width - 2;  // behind it " \"
  std::string text;
  std::string row;
  const auto end_row = [&](std::string_view end) {
    text.append(row).append(end).append("\n");
    row.clear();
  };
  for (std::string piece : command_pieces(command)) {
    if (!row.empty() && display_width(row) + 1 + display_width(piece) > width) {
      end_row(" \\");
      row = kIndent;
      row += piece;
    } else {
      row += (row.empty() ? "" : " ") + piece;
    }
    while (display_width(row) > width) {  // one long word, quoted or not
      const std::string start = row.substr(0, bytes_of(row, width - 1));
      const bool is_quoted = std::ranges::count(start, '\'') % 2 == 1;
      std::string rest = row.substr(start.size());
      row = start + (is_quoted ? "'" : "");
      end_row("\\");
      row = (is_quoted ? "'" : "") + rest;
    }
  }
  end_row("");
  return text;
}

std::string screen_table(const Screen& screen, const ScreenTable& wide) {
  Table table = wide.table;
  std::vector<int> weights = wide.weights;
  const auto width_of = [](const std::string& text) {
    std::int64_t widest = 0;
    for (std::size_t start = 0; start < text.size(); start = text.find('\n', start) + 1) {
      widest = std::max(widest, display_width(text.substr(start, text.find('\n', start) - start)));
    }
    return widest;
  };
  // The last column counts as far as it must be seen.
  constexpr std::int64_t kSeen = 36;
  const auto seen = [&] {
    Table cut = table;
    for (std::vector<Cell>& row : cut.rows) {
      if (std::string* text = std::get_if<std::string>(&row.back())) {
        *text = cut_to(*text, kSeen);
      }
    }
    return width_of(table_text(cut));
  };
  while (seen() > screen.width) {
    const auto lightest = std::ranges::min_element(weights);
    if (*lightest == kMustStand) {
      break;
    }
    const auto column = lightest - weights.begin();
    weights.erase(lightest);
    table.columns.erase(table.columns.begin() + column);
    for (std::vector<Cell>& row : table.rows) { row.erase(row.begin() + column); }
  }
  const std::string text = table_text(table);
  std::string rows;
  for (std::size_t start = 0; start < text.size(); start = text.find('\n', start) + 1) {
    rows += cut_to(text.substr(start, text.find('\n', start) - start), screen.width) + "\n";
  }
  return rows;
}

}  // namespace shardplan
