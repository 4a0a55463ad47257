#include "estimator/answer/step_numbers.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "estimator/answer/step_account.h"
#include "estimator/frameworks/framework.h"

namespace shardplan {
namespace {

double scaled(double value, double factor) {
  return factor * value;
}

HostCost scaled(const HostCost& cost, double factor) {
  return {.forward_s = factor * cost.forward_s, .backward_s = factor * cost.backward_s};
}

ChoiceCost scaled(const ChoiceCost& cost, double factor) {
  return {.forward_s = factor * cost.forward_s,
          .forward_score_s = factor * cost.forward_score_s,
          .backward_s = factor * cost.backward_s,
          .backward_score_s = factor * cost.backward_score_s};
}

std::vector<CurvePoint> scaled(std::vector<CurvePoint> curve, double factor) {
  for (CurvePoint& point : curve) { point.value *= factor; }
  return curve;
}

void scale(std::vector<double>& rates, double factor) {
  for (double& rate : rates) { rate *= factor; }
}

void scale(std::vector<CurvePoint>& curve, double factor) {
  for (CurvePoint& point : curve) { point.value *= factor; }
}

void scale(std::optional<double>& value, double factor) {
  if (value) {
    *value *= factor;
  }
}

void scale(GemmGrid& grid, double factor) {
  for (std::vector<double>* rates :
       {&grid.forward, &grid.input_gradient, &grid.weight_gradient, &grid.accumulated}) {
    scale(*rates, factor);
  }
}

void scale(std::optional<BesideRates>& rates, double factor) {
  if (rates) {
    rates->products *= factor;
    rates->collectives *= factor;
  }
}

// Rates that `calibrate --time` finds together.
struct MeasuredNumber {
  std::string_view name;
  void (*scale)(MeasuredTimes& times, double factor);
};
constexpr auto kMeasuredNumbers = std::to_array<MeasuredNumber>({
    {.name = "gemm", .scale = [](MeasuredTimes& of, double factor) { scale(of.gemm, factor); }},
    {.name = "gemm_fp8",
     .scale = [](MeasuredTimes& of, double factor) { scale(of.gemm_fp8, factor); }},
    {.name = "attention",
     .scale =
         [](MeasuredTimes& of, double factor) {
           for (AttentionCurve& curve : of.attention) {
             for (std::vector<CurvePoint>* rates :
                  {&curve.forward, &curve.backward, &curve.few.forward, &curve.few.backward}) {
               scale(*rates, factor);
             }
           }
         }},
    {.name = "grouped",
     .scale =
         [](MeasuredTimes& of, double factor) {
           scale(of.grouped.forward, factor);
           scale(of.grouped.input_gradient, factor);
           scale(of.grouped.weight_gradient, factor);
         }},
    {.name = "copy",
     .scale = [](MeasuredTimes& of, double factor) { of.copy_bytes_per_s *= factor; }},
    {.name = "clock_over_products",
     .scale =
         [](MeasuredTimes& of, double factor) {
           scale(of.copy_clock_over_products, factor);
           for (AttentionCurve& curve : of.attention) { scale(curve.clock_over_products, factor); }
         }},
    {.name = "collectives",
     .scale =
         [](MeasuredTimes& of, double factor) {
           for (CollectiveCurve& curve : of.collectives) { scale(curve.seconds, factor); }
         }},
    {.name = "beside_products",
     .scale = [](MeasuredTimes& of, double factor) { scale(of.beside, factor); }},
    {.name = "copies",
     .scale =
         [](MeasuredTimes& of, double factor) {
           for (CollectiveCurve& curve : of.copies.collectives) { scale(curve.seconds, factor); }
           scale(of.copies.beside, factor);
         }},
});

// What a part takes and hides.
struct PartSeconds {
  std::string kind;
  double visible_s = 0;
  double hidden_s = 0;
};

std::vector<PartSeconds> parts_of(const Job& job, const Plan& plan) {
  std::vector<PartSeconds> parts;
  for (const AccountRow& row : step_account(job, plan).rows) {
    if (row.basis == TimeBasis::kSchedule) {
      continue;
    }
    auto same = std::ranges::find(parts, row.kind, &PartSeconds::kind);
    if (same == parts.end()) {
      same = parts.insert(parts.end(), {.kind = row.kind});
    }
    same->visible_s += row.visible_s;
    same->hidden_s += row.hidden_s;
  }
  return parts;
}

// Sums in another order, and factors that cancel, differ by less.
bool differ(double a, double b) {
  constexpr double kRoundingShare = 1e-9;
  return std::abs(a - b) > kRoundingShare * std::max(std::abs(a), std::abs(b));
}

class MovedParts {
 public:
  MovedParts(const Job& job, const Plan& plan)
      : job_(job), plan_(plan), parts_(parts_of(job, plan)) {}

  // `scale_number(job, factor)`: gives the job so much more of the number.
  template <class ScaleNumber>
  void add(StepNumber number, const ScaleNumber& scale_number) {
    constexpr double kPercent = 1.01;
    std::vector<bool> moved(parts_.size(), false);
    for (const double factor : {kPercent, 1 / kPercent}) {
      Job changed = job_;
      scale_number(changed, factor);
      mark(parts_of(changed, plan_), moved);
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (moved[i]) {
        number.parts.push_back(parts_[i].kind);
      }
    }
    if (!number.parts.empty()) {
      numbers_.push_back(std::move(number));
    }
  }

  std::vector<StepNumber> take() { return std::move(numbers_); }

 private:
  // A part of which nothing is left was moved.
  void mark(const std::vector<PartSeconds>& now, std::vector<bool>& moved) const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto same = std::ranges::find(now, parts_[i].kind, &PartSeconds::kind);
      if (same == now.end() || differ(same->visible_s, parts_[i].visible_s) ||
          differ(same->hidden_s, parts_[i].hidden_s)) {
        moved[i] = true;
      }
    }
  }

  const Job& job_;
  const Plan& plan_;
  const std::vector<PartSeconds> parts_;
  std::vector<StepNumber> numbers_;
};

void add_constants(const Job& job, MovedParts& parts) {
  const std::shared_ptr<const TimeConstants>& constants = job.cluster.gpu.constants;
  for (const TimeConstant& constant : kTimeConstants) {
    std::visit(
        [&](auto member) {
          parts.add({.table = NumberTable::kTime,
                     .name = constant.name,
                     .value = constants.get()->*member,
                     .unit = constant.unit.empty() ? "share" : constant.unit,
                     .parts = {}},
                    [&](Job& changed, double factor) {
                      TimeConstants of = *constants;
                      of.*member = scaled(of.*member, factor);
                      changed.cluster.gpu.constants = std::make_shared<const TimeConstants>(of);
                    });
        },
        constant.member);
  }
}

void add_measured(const Job& job, MovedParts& parts) {
  if (!job.cluster.gpu.times) {
    return;
  }
  for (const MeasuredNumber& measured : kMeasuredNumbers) {
    parts.add(
        {.table = NumberTable::kGpu, .name = measured.name, .value = {}, .unit = {}, .parts = {}},
        [&](Job& changed, double factor) { measured.scale(*changed.cluster.gpu.times, factor); });
  }
}

// What products and attention keep up where no rates by size were measured.
void add_sustained(const Job& job, MovedParts& parts) {
  const std::optional<SustainedRates>& rates = job.cluster.gpu.sustained;
  if (!rates) {
    return;
  }
  const auto add = [&](std::string_view name, std::string_view unit, double SustainedRates::*rate) {
    parts.add(
        {.table = NumberTable::kGpu,
         .name = name,
         .value = (*rates).*rate,
         .unit = unit,
         .parts = {}},
        [&](Job& changed, double factor) { (*changed.cluster.gpu.sustained).*rate *= factor; });
  };
  add("sustained/bf16", "FLOP/s", &SustainedRates::bf16_flops_per_s);
  add("sustained/fp8", "FLOP/s", &SustainedRates::fp8_flops_per_s);
  add("sustained/attention_of_curve", "share", &SustainedRates::attention_of_curve);
}

void add_host(const Job& job, NumberTable where, std::span<const HostNumber> numbers,
              HostTable HostTables::*table, MovedParts& parts) {
  const std::shared_ptr<const HostTables>& host = job.profile.host;
  for (const HostNumber& number : numbers) {
    std::visit(
        [&](auto member) {
          parts.add({.table = where,
                     .name = number.name,
                     .value = (*host).*table.*member,
                     .unit = number.is_seconds ? "s" : "",
                     .parts = {}},
                    [&](Job& changed, double factor) {
                      HostTables tables = *host;
                      tables.*table.*member = scaled(tables.*table.*member, factor);
                      changed.profile.host = std::make_shared<const HostTables>(tables);
                    });
        },
        number.member);
  }
}

}  // namespace

std::vector<StepNumber> step_numbers(const Job& job, const Plan& plan) {
  MovedParts parts(job, plan);
  add_constants(job, parts);
  add_measured(job, parts);
  add_sustained(job, parts);
  if (job.profile.host != nullptr) {
    const HostLaunches& host = framework_of(job.profile).kernels.host;
    add_host(job, NumberTable::kHost, host.numbers, &HostTables::eager, parts);
    add_host(job, NumberTable::kCompiledHost, host.compiled_numbers, &HostTables::compiled, parts);
  }
  return parts.take();
}

}  // namespace shardplan
