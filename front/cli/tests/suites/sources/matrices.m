% Matrices: products, a decomposition, sorting, accumulation.
n = 1200;
a = mod(reshape((1:n * n) * 7919, n, n), 1009) - 500;
b = a' * a;
printf("%.0f %.0f\n", sum(b(:)), trace(b));
s = sort(mod((1:6e6) * 104729, 1000003));
printf("%.0f %.0f %.0f\n", s(1), s(end), sum(s(1:1000:end)));
c = accumarray(mod((1:3e6)', 50021) + 1, (1:3e6)');
printf("%.0f %.0f\n", max(c), sum(c));
x = mod(a(1:400, 1:400), 10) + 50 * eye(400);
printf("%.6f\n", norm(x * (x \ ones(400, 1)) - ones(400, 1)) < 1e-8);
