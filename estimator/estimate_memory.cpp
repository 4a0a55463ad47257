#include "estimator/estimate.h"
