// Of plans that the model cannot tell apart a search recommends first what one would take.
#pragma once

#include "data/read/library.h"
#include "tools/accuracy/evidence.h"
#include "tools/report/report.h"

namespace shardplan {

// Orders the plans of every tie: those that measured runs cover before those beyond all of them,
// simple ones before others, then by speed. The simplest tied plan joins the first tie.
// `asked`: the job without the switches that the search has on by itself, which runs need not have.
void recommend(SearchReport& report, const Job& asked, const MeasuredRuns& runs);

}  // namespace shardplan
