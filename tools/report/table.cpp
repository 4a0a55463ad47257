#include "tools/report/table.h"

#include <algorithm>

#include "data/read/json_message.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

struct CellWords {
  std::string operator()(std::monostate) const { return "-"; }
  std::string operator()(std::int64_t value) const { return grouped(value); }
  std::string operator()(double value) const { return exact_text(value); }
  std::string operator()(const std::string& value) const { return one_line(value); }
};

// A column of numbers: every cell opens with a digit, behind a sign or not, or is empty.
bool is_numeric(const std::vector<std::vector<std::string>>& rows, std::size_t column) {
  return std::all_of(rows.begin(), rows.end(), [column](const std::vector<std::string>& row) {
    const std::string& cell = row[column];
    const std::size_t sign = cell.starts_with("+") || cell.starts_with("-") ? 1 : 0;
    return cell.empty() || cell == "-" ||
           (cell.size() > sign && std::string("0123456789").find(cell[sign]) != std::string::npos);
  });
}

}  // namespace

std::string table_text(const Table& table) {
  std::vector<std::vector<std::string>> rows;
  for (const std::vector<Cell>& cells : table.rows) {
    std::vector<std::string> row;
    row.reserve(cells.size());
    for (const Cell& cell : cells) { row.push_back(std::visit(CellWords{}, cell)); }
    rows.push_back(std::move(row));
  }
  std::vector<std::string> lines(rows.size() + 1);
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    std::int64_t width = display_width(table.columns[column]);
    for (const std::vector<std::string>& row : rows) {
      width = std::max(width, display_width(row[column]));
    }
    const bool is_right = is_numeric(rows, column);
    const bool is_last = column + 1 == table.columns.size();
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string& cell = i == 0 ? table.columns[column] : rows[i - 1][column];
      lines[i] += column == 0 ? "" : "  ";
      if (is_right) {
        lines[i] += padded_left(cell, width);
      } else {
        lines[i] += is_last ? cell : padded_right(cell, width);
      }
    }
  }
  std::string text;
  for (const std::string& line : lines) {
    text.append(line, 0, line.find_last_not_of(' ') + 1).append("\n");
  }
  return text;
}

}  // namespace shardplan
