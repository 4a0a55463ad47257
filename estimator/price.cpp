#include "estimator/price.h"
