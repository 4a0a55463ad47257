#include "estimator/rank_grid.h"
