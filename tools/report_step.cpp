// Where the time of a step goes, operation by operation.
#include "tools/report.h"
#include "tools/text.h"

namespace shardplan {
namespace {

constexpr double kMsPerS = 1e3;

std::string share_text(double seconds, const StepAccount& account) {
  return fixed(100 * seconds / account.total_s, 2);
}

std::string kinds_text(const StepAccount& account) {
  Table table = {.columns = {"kind", "ms", "% of step", "ms hidden"}};
  for (const AccountRow& row : by_kind(account)) {
    table.rows.push_back({row.kind, fixed(row.visible_s * kMsPerS, 2),
                          share_text(row.visible_s, account),
                          row.hidden_s > 0 ? Cell{fixed(row.hidden_s * kMsPerS, 2)} : Cell{}});
  }
  return table_text(table);
}

}  // namespace

Table account_table(const StepAccount& account) {
  Table table = {.columns = {"kind", "block", "direction", "operation", "count", "visible_s",
                             "hidden_s", "share", "basis"}};
  for (const AccountRow& row : account.rows) {
    table.rows.push_back({row.kind, row.block, row.direction, row.operation, row.count,
                          row.visible_s, row.hidden_s, row.visible_s / account.total_s,
                          std::string(name_of(row.basis))});
  }
  return table;
}

std::string account_text(const StepAccount& account) {
  Table table = {.columns = {"block", "direction", "operation", "count", "ms each", "ms",
                             "% of step", "ms hidden", "rests on"}};
  for (const AccountRow& row : account.rows) {
    const double each_s = row.visible_s / static_cast<double>(row.count);
    table.rows.push_back({row.block, row.direction, row.operation, row.count,
                          fixed(each_s * kMsPerS, 3), fixed(row.visible_s * kMsPerS, 2),
                          share_text(row.visible_s, account),
                          row.hidden_s > 0 ? Cell{fixed(row.hidden_s * kMsPerS, 2)} : Cell{},
                          std::string(name_of(row.basis))});
  }
  return "\nTime of one step on the critical stage " + std::to_string(account.pp_rank) + ", " +
         fixed(account.total_s * kMsPerS, 2) +
         " ms. Products are rows x out x in of the forward; hidden is communication behind "
         "compute\n" +
         table_text(table) + "\n" + kinds_text(account);
}

}  // namespace shardplan
