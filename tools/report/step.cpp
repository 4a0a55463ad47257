#include "tools/report/step.h"

#include <algorithm>

#include "tools/report/report.h"
#include "tools/report/text.h"

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

// Of one kind of work in the limit and in the estimate.
struct KindSeconds {
  std::string kind;
  double limit_s = 0;
  double estimate_s = 0;
};

std::vector<KindSeconds> kinds_of(const StepComparison& comparison) {
  std::vector<KindSeconds> kinds;
  const auto add = [&](const StepAccount& account, double KindSeconds::*seconds) {
    for (const AccountRow& row : by_kind(account)) {
      auto same = std::ranges::find(kinds, row.kind, &KindSeconds::kind);
      if (same == kinds.end()) {
        same = kinds.insert(kinds.end(), {.kind = row.kind});
      }
      (*same).*seconds = row.visible_s;
    }
  };
  add(comparison.estimate, &KindSeconds::estimate_s);
  add(comparison.limit, &KindSeconds::limit_s);
  return kinds;
}

}  // namespace

Table limit_table(const StepComparison& comparison) {
  Table table = {.columns = {"kind", "limit_s", "estimate_s", "lost_s"}};
  for (const KindSeconds& kind : kinds_of(comparison)) {
    table.rows.push_back(
        {kind.kind, kind.limit_s, kind.estimate_s, kind.estimate_s - kind.limit_s});
  }
  return table;
}

std::string limit_text(const StepComparison& comparison) {
  const double limit_s = comparison.limit.total_s;
  const double estimate_s = comparison.estimate.total_s;
  Table table = {.columns = {"kind", "limit ms", "estimate ms", "lost ms", "lost %"}};
  const auto add = [&](const std::string& kind, double least_s, double seconds) {
    table.rows.push_back({kind, fixed(least_s * kMsPerS, 2), fixed(seconds * kMsPerS, 2),
                          fixed((seconds - least_s) * kMsPerS, 2),
                          fixed(100 * (seconds - least_s) / estimate_s, 2)});
  };
  for (const KindSeconds& kind : kinds_of(comparison)) {
    add(kind.kind, kind.limit_s, kind.estimate_s);
  }
  add("step", limit_s, estimate_s);
  return "\nLimit of one step: the best rates that were measured, communication behind all that "
         "does not wait for it.\nThe estimate is at " +
         percent(limit_s / estimate_s) + " of it\n" + table_text(table);
}

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
